"""Tasks at a workplace: mail, a calendar, files and a CRM."""

from __future__ import annotations

import random

from gem_envs.mcp_suite.office import Office, create, event, send, sent
from gem_envs.mcp_suite.task import SuiteTask, Template
from gem_envs.terminal.task import ITEMS, WORDS

__all__ = ["TEMPLATES"]


def reply(rng: random.Random) -> SuiteTask:
    office = Office(rng)
    name, word = rng.choice(office.people), rng.choice(WORDS)
    code = rng.randint(1000, 9999)
    office.inbox(office.mail(name), f"the {word} project", f"Our number is {code}. Confirm it.")
    subject, body = f"Re: the {word} project", f"Confirmed: {code}"
    return office.task(
        f"Answer the mail with the subject 'the {word} project': send its sender a mail with the "
        f"subject '{subject}' and the body 'Confirmed: NUMBER', with the number from the mail.",
        [sent(office.mail(name), subject, body)],
        [
            ("search_mail", {"words": word}),
            ("read_mail", {"id": 6}),
            send(office.mail(name), subject, body),
        ],
    )


def move_meeting(rng: random.Random) -> SuiteTask:
    office = Office(rng)
    item, day, start = rng.choice(ITEMS), rng.randint(5, 9), rng.randint(9, 12)
    office.add("events", f"{item} talk", day, start, 30, office.mail(office.people[0]))
    office.add("events", f"{item} lunch", day, 13, 30, "")
    return office.task(
        f"Move the event '{item} talk' to day {day + 1} at {start + 2}, and make it 90 minutes "
        "long.",
        [
            f"update events set day = {day + 1}, start = {start + 2}, minutes = 90 "
            f"where title = '{item} talk'"
        ],
        [
            ("list_events", {"day": day}),
            ("update_event", {"id": 7, "day": day + 1, "start": start + 2, "minutes": 90}),
            ("list_events", {"day": day + 1}),
        ],
    )


def new_phone(rng: random.Random) -> SuiteTask:
    office = Office(rng)
    name, phone = rng.choice(office.people), f"777-{rng.randint(1000, 9999)}"
    office.inbox(office.mail(name), "new number", f"Call me at {phone} from now on.")
    return office.task(
        f"{name.title()} wrote a mail about a new phone number. Store it in the contact.",
        [f"update contacts set phone = '{phone}' where id = {office.number(name)}"],
        [
            ("search_mail", {"words": "new number"}),
            ("read_mail", {"id": 6}),
            ("find_contacts", {"words": name}),
            ("update_contact", {"id": office.number(name), "phone": phone}),
        ],
    )


def share(rng: random.Random) -> SuiteTask:
    office = Office(rng)
    company = rng.choice(office.companies)
    name = rng.choice(office.people)
    number = office.number(name)
    office.lines.append(f"update contacts set company = '{company}x' where id = {number};")
    return office.task(
        f"Share the file prices.txt with our contact at the company {company}x, and write them a "
        "mail with the subject 'Prices' and the body 'The file prices.txt is yours now.'",
        [
            f"update files set shared_with = '{office.mail(name)}' where name = 'prices.txt'",
            sent(office.mail(name), "Prices", "The file prices.txt is yours now."),
        ],
        [
            ("find_contacts", {"words": f"{company}x"}),
            ("list_files", {}),
            ("share_file", {"name": "prices.txt", "address": office.mail(name)}),
            send(office.mail(name), "Prices", "The file prices.txt is yours now."),
        ],
    )


def invitation(rng: random.Random) -> SuiteTask:
    office = Office(rng)
    name, other = rng.sample(office.people, 2)
    title, day, start = f"{rng.choice(ITEMS)} planning", rng.randint(10, 20), rng.randint(9, 16)
    body = (
        f"Let us meet on day {day} at {start}, for 90 minutes. Please invite {other.title()} too."
    )
    office.inbox(office.mail(name), title, body)
    answer = f"See you on day {day} at {start}."
    return office.task(
        f"{name.title()} proposes a meeting in a mail with the subject '{title}'. Create the event "
        "with this title, as proposed; the attendees are the sender and the other invited person. "
        f"Then send the sender a mail with the subject 'Re: {title}' and the body "
        "'See you on day DAY at HOUR.'",
        [
            event(title, day, start, 90, office.mail(name), office.mail(other)),
            sent(office.mail(name), f"Re: {title}", answer),
        ],
        [
            ("search_mail", {"words": title}),
            ("read_mail", {"id": 6}),
            ("find_contacts", {"words": other}),
            create(title, day, start, 90, office.mail(name), office.mail(other)),
            send(office.mail(name), f"Re: {title}", answer),
        ],
    )


def newsletters(rng: random.Random) -> SuiteTask:
    office = Office(rng)
    sender = f"news@{rng.choice(WORDS)}.example"
    count = rng.randint(3, 5)
    for number in range(count):
        office.inbox(sender, f"issue {rng.randint(10, 99)}", f"News number {number}.")
    office.inbox(office.mail(office.people[0]), "the news", "Did you read it?")
    return office.task(
        f"Move all mails from {sender} in the inbox to the archive.",
        [f"update mails set folder = 'archive' where sender = '{sender}'"],
        [
            ("search_mail", {"words": sender}),
            *(("move_mail", {"id": n, "folder": "archive"}) for n in range(6, 6 + count)),
            ("search_mail", {"words": sender, "folder": "archive"}),
        ],
    )


def win_deal(rng: random.Random) -> SuiteTask:
    office = Office(rng)
    number = rng.randint(1, 7)
    office.lines.append(f"update deals set stage = 'offer' where id = {number};")
    name, value = office.people[number - 1], rng.randint(11, 99) * 100 + 50
    office.inbox(office.mail(name), "yes!", f"We take your offer, for {value}.")
    note = f"won, {value}"
    return office.task(
        f"{name.title()} accepted our offer by mail, at a new price. Set the deal of this contact "
        "to won and its value to that price, and add the note 'won, PRICE' to the contact.",
        [
            f"update deals set stage = 'won', value = {value} where id = {number}",
            f"insert into notes (contact_id, text) values ({office.number(name)}, '{note}')",
        ],
        [
            ("search_mail", {"words": name}),
            ("read_mail", {"id": 6}),
            ("find_contacts", {"words": name}),
            ("list_deals", {"stage": "offer"}),
            ("update_deal", {"id": number, "value": value, "stage": "won"}),
            ("add_note", {"contact_id": office.number(name), "text": note}),
        ],
    )


def corrections(rng: random.Random) -> SuiteTask:
    office = Office(rng)
    deals = rng.sample(range(1, 8), 3)
    values = {number: rng.randint(11, 99) * 100 + 1 for number in deals}
    text = "\n".join(f"deal {number}: value {value}" for number, value in values.items())
    office.add("files", "corrections.txt", text, "")
    return office.task(
        "The file corrections.txt lists ids of deals with their right values. Correct the deals, "
        "and replace the text of the file by the word done.",
        [
            *(f"update deals set value = {v} where id = {n}" for n, v in values.items()),
            "update files set text = 'done' where name = 'corrections.txt'",
        ],
        [
            ("list_files", {}),
            ("read_file", {"name": "corrections.txt"}),
            ("list_deals", {}),
            *(("update_deal", {"id": n, "value": v}) for n, v in values.items()),
            ("write_file", {"name": "corrections.txt", "text": "done"}),
        ],
    )


def cancel_day(rng: random.Random) -> SuiteTask:
    office = Office(rng)
    day, guests = rng.randint(10, 20), rng.sample(office.people, 3)
    for start, guest in zip((9, 11, 14), guests, strict=True):
        office.add("events", f"{rng.choice(WORDS)} talk", day, start, 60, office.mail(guest))
    office.add("events", "training", day + 1, 9, 60, office.mail(guests[0]))
    subject, body = "Cancelled", f"I am ill on day {day}."
    return office.task(
        f"I am ill on day {day}. Delete all events of that day, and send each of their attendees a "
        f"mail with the subject '{subject}' and the body '{body}'",
        [
            f"delete from events where day = {day}",
            *(sent(office.mail(guest), subject, body) for guest in guests),
        ],
        [
            ("list_events", {"day": day}),
            *(("delete_event", {"id": number}) for number in (7, 8, 9)),
            *(send(office.mail(guest), subject, body) for guest in guests),
            ("list_events", {"day": day}),
        ],
    )


def onboard(rng: random.Random) -> SuiteTask:
    office = Office(rng)
    company, item = f"{rng.choice(WORDS)} ltd", rng.choice(ITEMS)
    address, phone = f"zoe@{company.split()[0]}.example", f"888-{rng.randint(1000, 9999)}"
    value, day = rng.randint(10, 99) * 100, rng.randint(10, 20)
    body = (
        f"We need {item} for about {value}. I am free on day {day} at 10, for 60 minutes.\n"
        f"Zoe, {company}, phone {phone}"
    )
    office.inbox(address, f"we need {item}", body)
    title = f"{item} order"
    return office.task(
        f"A new customer asks for {item} by mail. Create the contact Zoe with the details from the "
        f"mail, the deal '{title}' of the given value for this contact, and the event 'first call' "
        "at the proposed time with the sender as the only attendee. Then move the mail to the "
        "archive.",
        [
            "insert into contacts (name, mail, company, phone) "
            f"values ('Zoe', '{address}', '{company}', '{phone}')",
            "insert into deals (contact_id, title, value, stage) "
            f"values (9, '{title}', {value}, 'lead')",
            event("first call", day, 10, 60, address),
            "update mails set folder = 'archive' where id = 6",
        ],
        [
            ("search_mail", {"words": item}),
            ("read_mail", {"id": 6}),
            (
                "create_contact",
                {"name": "Zoe", "mail": address, "company": company, "phone": phone},
            ),
            ("create_deal", {"contact_id": 9, "title": title, "value": value}),
            create("first call", day, 10, 60, address),
            ("move_mail", {"id": 6, "folder": "archive"}),
        ],
    )


def free_hour(rng: random.Random) -> SuiteTask:
    office = Office(rng)
    day, names = rng.randint(10, 20), rng.sample(office.people, 2)
    free = rng.randint(10, 15)
    for start in [*range(9, free), *rng.sample(range(free + 1, 17), 1)]:
        office.add("events", f"{rng.choice(WORDS)} talk", day, start, 60, "")
    office.add("events", "training", day + 1, free, 60, "")
    attendees = [office.mail(name) for name in names]
    body = f"We meet on day {day} at {free}."
    return office.task(
        f"Find the first free hour on day {day}, from 9 on; every event there takes one hour. "
        f"Create the event 'project start' of 60 minutes at that hour with {names[0].title()} and "
        f"{names[1].title()}, whose addresses are in the contacts. Send both a mail with the "
        f"subject 'project start' and the body 'We meet on day {day} at HOUR.'",
        [
            event("project start", day, free, 60, *attendees),
            *(sent(address, "project start", body) for address in attendees),
        ],
        [
            ("list_events", {"day": day}),
            *(("find_contacts", {"words": name}) for name in names),
            create("project start", day, free, 60, *attendees),
            *(send(address, "project start", body) for address in attendees),
        ],
    )


TEMPLATES = {
    "Reply": Template("easy", reply),
    "MoveMeeting": Template("easy", move_meeting),
    "NewPhone": Template("easy", new_phone),
    "ShareFile": Template("easy", share),
    "Invitation": Template("medium", invitation),
    "Newsletters": Template("medium", newsletters),
    "WinDeal": Template("medium", win_deal),
    "Corrections": Template("medium", corrections),
    "CancelDay": Template("hard", cancel_day),
    "Onboard": Template("hard", onboard),
    "FreeHour": Template("hard", free_hour),
}
