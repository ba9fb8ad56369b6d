"""Tasks on a PostgreSQL database: a library with members, books and loans."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from gem_envs.mcp_suite.sql import sql_task
from gem_envs.mcp_suite.task import Call, SuiteTask, Template
from gem_envs.terminal.task import PEOPLE, WORDS

__all__ = ["TEMPLATES"]

_SCHEMA = """
create table members (id integer primary key, name text not null, joined date not null,
    profile jsonb not null default '{}');
create table books (id integer primary key, title text not null, copies integer not null,
    tags text[] not null);
create table loans (id integer primary key, member_id integer not null references members,
    book_id integer not null references books, taken date not null, returned date);
"""
_ABOUT = (
    "The PostgreSQL database of a library has the tables members, books and loans in the schema "
    "public. A loan without a date in returned is still running. "
)
_TAGS = ("art", "history", "nature", "travel")


def _look(*tables: str) -> tuple[Call, ...]:
    details: list[Call] = [("get_object_details", {"name": table}) for table in tables]
    return (("list_objects", {}), *details)


def _sql(statement: str) -> Call:
    return "execute_sql", {"sql": statement}


def library_script(rng: random.Random, books: int = 8, loans: int = 30) -> str:
    """Return the SQL script of a library."""
    lines = [_SCHEMA]
    for n, name in enumerate(rng.sample(PEOPLE, 9), 1):
        profile = json.dumps(
            {"city": rng.choice(("Oslo", "Porto", "Riga")), "fee": rng.randint(1, 9)}
        )
        joined = f"20{rng.randint(20, 29)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
        lines.append(f"insert into members values ({n}, '{name}', '{joined}', '{profile}');")
    for n, title in enumerate(rng.sample(WORDS, books), 1):
        tags = "{" + ",".join(sorted(rng.sample(_TAGS, rng.randint(1, 3)))) + "}"
        lines.append(f"insert into books values ({n}, '{title}', {rng.randint(1, 5)}, '{tags}');")
    for n in range(1, loans + 1):
        month, day = rng.randint(1, 6), rng.randint(1, 28)
        returned = (
            f"'2030-{month + rng.randint(1, 5):02}-{day:02}'" if rng.random() < 0.6 else "null"
        )
        lines.append(
            f"insert into loans values ({n}, {rng.randint(1, 9)}, {rng.randint(1, books)}, "
            f"'2030-{month:02}-{day:02}', {returned});"
        )
    return "\n".join(lines)


def _task(
    instruction: str,
    script: str,
    reference: Sequence[str],
    look: Sequence[Call],
    probes: Sequence[str] = (),
) -> SuiteTask:
    return sql_task(_ABOUT + instruction, script, reference, look, _sql, probes)


def return_book(rng: random.Random) -> SuiteTask:
    script, day = library_script(rng), rng.randint(10, 28)
    number = rng.randint(1, 30)
    script += f"\nupdate loans set returned = null where id = {number};"
    return _task(
        f"The book of the loan with the id {number} came back on 2030-12-{day}. Record it.",
        script,
        [f"update loans set returned = '2030-12-{day}' where id = {number}"],
        (*_look("loans"), _sql(f"select * from loans where id = {number}")),
    )


def add_member(rng: random.Random) -> SuiteTask:
    city, fee = rng.choice(("Oslo", "Porto", "Riga")), rng.randint(10, 20)
    profile = json.dumps({"city": city, "fee": fee})
    return _task(
        f"Add the member Zoe with the id 10, who joined on 2030-07-01. The profile has the city "
        f"{city} and the fee {fee}, under the same keys and with the same types as for the other "
        "members.",
        library_script(rng),
        [f"insert into members values (10, 'Zoe', '2030-07-01', '{profile}')"],
        (*_look("members"), _sql("select * from members limit 3")),
    )


def tag_books(rng: random.Random) -> SuiteTask:
    tag = rng.choice(_TAGS)
    script = library_script(rng) + f"\nupdate books set tags = array['{tag}'] where id = 1;"
    return _task(
        f"Append the tag featured to the tags of every book that has the tag {tag}.",
        script,
        [f"update books set tags = array_append(tags, 'featured') where '{tag}' = any (tags)"],
        (*_look("books"), _sql("select id, tags from books")),
    )


def raise_fees(rng: random.Random) -> SuiteTask:
    city, extra = rng.choice(("Oslo", "Porto", "Riga")), rng.randint(2, 9)
    script = library_script(rng)
    script += (
        f"\nupdate members set profile = jsonb_set(profile, '{{city}}', '\"{city}\"') where id = 1;"
    )
    return _task(
        f"Raise the fee in the profile of every member in {city} by {extra}.",
        script,
        [
            "update members set profile = jsonb_set(profile, '{fee}', "
            f"to_jsonb((profile->>'fee')::int + {extra})) where profile->>'city' = '{city}'"
        ],
        (*_look("members"), _sql("select id, profile from members")),
    )


def busiest_members(rng: random.Random) -> SuiteTask:
    count = rng.randint(3, 5)
    query = (
        "select m.name, count(*)::int as loans from loans l join members m on m.id = l.member_id "
        f"group by m.id order by count(*) desc, m.name limit {count}"
    )
    return _task(
        f"Create the table busiest with the columns name and loans, and fill it with the {count} "
        "members who have the most loans, running or not; of equal numbers, the name that comes "
        "first in the alphabet counts.",
        library_script(rng, loans=50),
        ["create table busiest (name text, loans integer)", f"insert into busiest {query}"],
        (*_look("members", "loans"), _sql(query)),
    )


def overdue_view(rng: random.Random) -> SuiteTask:
    days = rng.choice((30, 45, 60))
    view = (
        "create view overdue as select l.id, m.name, b.title from loans l "
        "join members m on m.id = l.member_id join books b on b.id = l.book_id "
        f"where l.returned is null and l.taken < date '2030-07-01' - {days}"
    )
    return _task(
        "Create the view overdue with the columns id (of the loan), name (of the member) and title "
        f"(of the book): all running loans that were taken more than {days} days before "
        "2030-07-01. The view must follow later changes of the tables.",
        library_script(rng, loans=40),
        [view],
        _look("members", "books", "loans"),
        probes=(
            "update loans set returned = null, taken = '2030-01-02' where id in (1, 2)",
            "update loans set returned = '2030-06-30' where id in (3, 4)",
            "select * from overdue",
        ),
    )


def forbid_mistakes(rng: random.Random) -> SuiteTask:
    most = rng.randint(20, 50)
    return _task(
        f"The database should refuse wrong data: a book must have at least 0 and at most {most} "
        "copies, a loan must not be returned before it was taken, and two books must not have the "
        "same title. Add constraints to the tables for this.",
        library_script(rng),
        [
            f"alter table books add check (copies between 0 and {most})",
            "alter table loans add check (returned >= taken)",
            "alter table books add unique (title)",
        ],
        (*_look("books", "loans"), _sql("select max(copies) from books")),
        probes=(
            "insert into books values (90, 'x', -1, '{}')",
            f"insert into books values (91, 'y', {most + 1}, '{{}}')",
            f"insert into books values (92, 'z', {most}, '{{}}')",
            "insert into books values (93, 'z', 0, '{}')",
            "insert into loans values (90, 1, 1, '2030-05-05', '2030-05-04')",
            "insert into loans values (91, 1, 1, '2030-05-05', '2030-05-05')",
            "insert into loans values (92, 1, 1, '2030-05-05', null)",
        ),
    )


def merge_members(rng: random.Random) -> SuiteTask:
    script = library_script(rng)
    for n, original in enumerate(rng.sample(range(1, 10), 2), 10):
        script += (
            f"\ninsert into members select {n}, upper(name), joined, profile from members "
            f"where id = {original};"
            f"\ninsert into loans values ({n + 30}, {n}, {rng.randint(1, 8)}, '2030-05-05', null);"
        )
    return _task(
        "Some members exist twice: their names differ in upper and lower case only. Assign the "
        "loans of such a pair to the lower id, and delete the member with the higher id.",
        script,
        [
            "update loans set member_id = (select min(b.id) from members a join members b "
            "on lower(a.name) = lower(b.name) where a.id = loans.member_id)",
            "delete from members where id not in "
            "(select min(id) from members group by lower(name))",
        ],
        (
            *_look("members"),
            _sql("select lower(name), array_agg(id) from members group by 1 having count(*) > 1"),
        ),
    )


def monthly_report(rng: random.Random) -> SuiteTask:
    query = (
        "select to_char(taken, 'YYYY-MM') as month, count(*)::int as loans, "
        "sum(count(*)) over (order by to_char(taken, 'YYYY-MM'))::int as total "
        "from loans group by 1"
    )
    return _task(
        "Create the table monthly with the columns month, loans and total: one row for each month "
        "with a loan taken, as in 2030-02, the number of loans taken in this month, and the number "
        "of loans taken in this and all earlier months.",
        library_script(rng, loans=60),
        [
            "create table monthly (month text, loans integer, total integer)",
            f"insert into monthly {query}",
        ],
        (*_look("loans"), _sql(query)),
    )


def count_copies(rng: random.Random) -> SuiteTask:
    function = (
        "create function available(book integer) returns integer language sql stable as "
        "'select b.copies - (select count(*)::int from loans l where l.book_id = b.id "
        "and l.returned is null) from books b where b.id = book'"
    )
    return _task(
        "Create the function available(integer) that returns, for the id of a book, its copies "
        "minus its running loans as an integer; null for an unknown id. Then add the column free "
        "to books and fill it with the present value of the function for each book.",
        library_script(rng),
        [
            function,
            "alter table books add column free integer",
            "update books set free = available(id)",
        ],
        (*_look("books", "loans"), _sql("select book_id, count(*) from loans group by 1")),
        probes=(
            "update loans set returned = null where id < 5",
            "select id, available(id) from books",
            "select available(999)",
        ),
    )


def split_tags(rng: random.Random) -> SuiteTask:
    return _task(
        "Store the tags in tables of their own: tag_names with the columns id and name, one row "
        "per tag, numbered from 1 in alphabetical order, and book_tags with the columns book_id "
        "and tag_id, one row per tag of a book. Then drop the column tags of books.",
        library_script(rng),
        [
            "create table tag_names (id integer primary key, name text)",
            "insert into tag_names select row_number() over (order by tag), tag "
            "from (select distinct unnest(tags) as tag from books) as t",
            "create table book_tags (book_id integer, tag_id integer)",
            "insert into book_tags select b.id, t.id from books b, tag_names t "
            "where t.name = any (b.tags)",
            "alter table books drop column tags",
        ],
        (*_look("books"), _sql("select distinct unnest(tags) as tag from books order by 1")),
    )


TEMPLATES = {
    "ReturnBook": Template("easy", return_book),
    "AddMember": Template("easy", add_member),
    "TagBooks": Template("easy", tag_books),
    "RaiseFees": Template("easy", raise_fees),
    "BusiestMembers": Template("medium", busiest_members),
    "OverdueView": Template("medium", overdue_view),
    "MergeMembers": Template("medium", merge_members),
    "MonthlyReport": Template("medium", monthly_report),
    "ForbidMistakes": Template("hard", forbid_mistakes),
    "CountCopies": Template("hard", count_copies),
    "SplitTags": Template("hard", split_tags),
}
