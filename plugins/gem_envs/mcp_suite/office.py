"""Office: the initial data of the workplace tasks, and the steps that tasks share."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gem_envs.mcp_suite.sql import SqlSetup
from gem_envs.mcp_suite.task import Call, SuiteTask
from gem_envs.terminal.task import ITEMS, PEOPLE, WORDS, pick

__all__ = ["Office", "create", "event", "send", "sent"]

_SCHEMA = """
create table mails (id integer primary key, folder text, sender text, recipient text,
    subject text, body text, day integer);
create table events (id integer primary key, title text, day integer, start integer,
    minutes integer, attendees text);
create table files (id integer primary key, name text unique, text text, shared_with text);
create table contacts (id integer primary key, name text, mail text, company text, phone text);
create table deals (id integer primary key, contact_id integer, title text, value integer,
    stage text);
create table notes (id integer primary key, contact_id integer, text text);
"""
_ME = "me@acme.example"
_ABOUT = (
    f"You are the assistant of {_ME} and have tools for mail, calendar, files and customers "
    "(contacts and deals). Days are numbers, an event starts at a full hour. "
)


@dataclass
class Office:
    """The initial data of a workplace."""

    rng: random.Random
    lines: list[str] = field(default_factory=lambda: [_SCHEMA])
    people: list[str] = field(default_factory=list)
    companies: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.people = self.rng.sample(PEOPLE, 8)
        self.companies = pick(self.rng, 4)
        for name in self.people:
            company = self.rng.choice(self.companies)
            phone = f"555-{self.rng.randint(1000, 9999)}"
            self.add("contacts", name.title(), self.mail(name), company, phone)
        for number, item in enumerate(self.rng.sample(ITEMS, 7), 1):
            stage = self.rng.choice(("lead", "offer", "won", "lost"))
            self.add("deals", number, f"{item} order", self.rng.randint(10, 99) * 100, stage)
        for name in self.rng.sample(self.people, 5):
            subject = f"about {self.rng.choice(ITEMS)}"
            self.inbox(self.mail(name), subject, f"Can we talk about this?\n{name.title()}")
        for day in (3, 4):
            for start in self.rng.sample(range(9, 17), 3):
                guest = self.mail(self.rng.choice(self.people))
                self.add("events", f"{self.rng.choice(WORDS)} review", day, start, 60, guest)
        self.add("files", "handbook.txt", "Be kind.", "")
        self.add("files", "prices.txt", f"basic {self.rng.randint(10, 99)}", "")

    @staticmethod
    def mail(name: str) -> str:
        """Return the address of a person."""
        return f"{name}@mail.example"

    def add(self, table: str, *values: Any) -> None:
        """Add a row with the next id."""
        self.lines.append(f"insert into {table} values (null, {', '.join(map(_quote, values))});")

    def inbox(self, sender: str, subject: str, body: str) -> None:
        """Add a mail to the inbox, on a random day."""
        self.add("mails", "inbox", sender, _ME, subject, body, self.rng.randint(1, 9))

    def number(self, name: str) -> int:
        """Return the id of a contact."""
        return self.people.index(name) + 1

    def task(
        self, instruction: str, reference: Sequence[str], solution: Sequence[Call]
    ) -> SuiteTask:
        """Return the task; `reference` are the statements of the requested changes."""
        setup = SqlSetup(
            "\n".join(self.lines), tuple(reference), unordered=("mails", "events", "notes")
        )
        return SuiteTask(
            _ABOUT + instruction,
            setup,
            lambda state: bool(state.as_requested()),
            tuple(solution),
        )


def _quote(value: Any) -> str:
    return str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"


def sent(recipient: str, subject: str, body: str) -> str:
    """Return the statement that records a sent mail."""
    values = ", ".join(map(_quote, (_ME, recipient, subject, body)))
    return (
        "insert into mails (folder, sender, recipient, subject, body, day) "
        f"values ('sent', {values}, 0)"
    )


def send(recipient: str, subject: str, body: str) -> Call:
    """Return the call that sends a mail."""
    return "send_mail", {"recipient": recipient, "subject": subject, "body": body}


def event(title: str, day: int, start: int, minutes: int, *attendees: str) -> str:
    """Return the statement that records an event."""
    values = (title, day, start, minutes, ",".join(sorted(attendees)))
    return (
        "insert into events (title, day, start, minutes, attendees) "
        f"values ({', '.join(map(_quote, values))})"
    )


def create(title: str, day: int, start: int, minutes: int, *attendees: str) -> Call:
    """Return the call that creates an event."""
    arguments = {"title": title, "day": day, "start": start, "minutes": minutes}
    return "create_event", {**arguments, "attendees": list(attendees)}
