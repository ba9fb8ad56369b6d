"""Database: generated rows of a domain, and safe execution of one statement on them.

The database lives in memory for one statement, so a statement cannot change what the next one
sees.
"""

from __future__ import annotations

import datetime
import random
import sqlite3
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from gem_core.errors import GemError
from gem_envs.worlds.names import person_names, place_names
from gem_envs.worlds.sql.domains import Domain

__all__ = ["Database", "QueryError", "Row", "draw_database", "draw_names"]

Row = tuple[Any, ...]

YEARS = (2019, 2024)
_ACTORS, _ITEMS, _FACTS = 24, 16, 160
_LONGEST_STATEMENT = 4000
_LARGEST_VALUE, _LONGEST_PATTERN = 10_000, 1000
_MOST_ROWS, _MOST_COLUMNS, _MOST_CHARACTERS = 2000, 50, 4_000_000
_MOST_STEPS = 20_000_000
"""Steps of SQLite's virtual machine; they bound the time of a statement on any machine alike."""
_SECONDS = 10.0
"""Safety net for steps over long strings. It depends on the machine, so it is far above the time of
`_MOST_STEPS` ordinary steps, about 0.3 s."""
_STEPS_PER_CALL = 100_000
_FUNCTIONS = frozenset({
    "abs", "avg", "cast", "ceil", "ceiling", "coalesce", "count", "dense_rank", "first_value",
    "floor", "group_concat", "ifnull", "iif", "instr", "lag", "last_value", "lead", "length",
    "like", "lower", "ltrim", "max", "min", "nth_value", "ntile", "nullif", "percent_rank",
    "rank", "round", "row_number", "rtrim", "sign", "strftime", "substr", "substring", "sum",
    "total", "trim", "typeof", "upper",
})  # fmt: skip
"""No function that reads the clock, a file or a random number, or that builds a large value."""
_READS = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ})


class QueryError(GemError, ValueError):
    """Raised when a statement cannot be executed; the message is for its author."""


@dataclass(frozen=True)
class Database:
    """The rows of a domain's tables."""

    domain: Domain
    tables: tuple[tuple[str, tuple[Row, ...]], ...]

    def run(self, statement: str) -> tuple[list[str], list[Row]]:
        """Return the column names and rows of a SELECT; raise `QueryError` if it fails."""
        if len(statement) > _LONGEST_STATEMENT:
            raise QueryError(f"the statement is longer than {_LONGEST_STATEMENT} characters")
        with closing(sqlite3.connect(":memory:")) as connection:
            self._fill(connection)
            _restrict(connection)
            with _query_errors(), _time_limit(connection):
                cursor = connection.execute(statement)
                rows: list[Row] = []
                characters = 0
                for row in cursor:
                    characters += sum(len(v) for v in row if isinstance(v, (str, bytes)))
                    if len(rows) == _MOST_ROWS or characters > _MOST_CHARACTERS:
                        raise QueryError(
                            f"the result has more than {_MOST_ROWS} rows or "
                            f"{_MOST_CHARACTERS} characters"
                        )
                    rows.append(row)
            if cursor.description is None:
                raise QueryError("only a SELECT statement is allowed")
            return [column[0] for column in cursor.description], rows

    def _fill(self, connection: sqlite3.Connection) -> None:
        for statement in self.domain.schema():
            connection.execute(statement)
        for table, rows in self.tables:
            places = ", ".join("?" * len(rows[0]))
            connection.executemany(f"INSERT INTO {table} VALUES ({places})", rows)
        connection.commit()


@contextmanager
def _query_errors() -> Iterator[None]:
    """Raise SQLite's errors as `QueryError`."""
    try:
        yield
    except QueryError:
        raise
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
        message = str(error) or type(error).__name__
        if message == "interrupted":
            message = "the statement takes too long; it was stopped"
        raise QueryError(message) from None


@contextmanager
def _time_limit(connection: sqlite3.Connection) -> Iterator[None]:
    """Interrupt the connection after `_SECONDS`."""
    timer = threading.Timer(_SECONDS, connection.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # the connection is still open, so a late interrupt is harmless


def _restrict(connection: sqlite3.Connection) -> None:
    connection.create_function("strftime", -1, _strftime, deterministic=True)
    connection.set_authorizer(_authorize)
    calls = 0

    def count() -> int:
        nonlocal calls
        calls += 1
        return int(calls * _STEPS_PER_CALL > _MOST_STEPS)

    connection.set_progress_handler(count, _STEPS_PER_CALL)
    if sys.version_info >= (3, 11):
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_VALUE)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, _LONGEST_PATTERN)
        connection.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, _MOST_COLUMNS)


def _authorize(action: int, first: str | None, second: str | None, *_: Any) -> int:
    if action in _READS:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and str(second).lower() in _FUNCTIONS:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY  # also a recursion, which can build a value without bound


def _strftime(form: Any, *values: Any) -> str | None:
    """Format a date. SQLite's own function reads the clock if it gets no date."""
    if len(values) != 1 or not isinstance(form, str) or not isinstance(values[0], str):
        return None
    try:
        date = datetime.date.fromisoformat(values[0])
    except ValueError:
        return None
    year, month, day = values[0].split("-")
    text = form.replace("%Y", year).replace("%m", month).replace("%d", day)
    return text.replace("%j", f"{date.timetuple().tm_yday:03}")


def draw_names(rng: random.Random) -> tuple[list[str], list[str]]:
    """Draw the names of the actors and the items, which all databases of a task share."""
    return person_names(rng, _ACTORS), place_names(rng, _ITEMS)


def draw_database(
    domain: Domain, actors: Sequence[str], items: Sequence[str], rng: random.Random
) -> Database:
    """Draw the rows of a database with these actors and items."""
    group, actor, item, fact = domain.group, domain.actor, domain.item, domain.fact
    first_year, last_year = YEARS
    first = datetime.date(first_year, 1, 1).toordinal()
    last = datetime.date(last_year, 12, 31).toordinal()
    idle = {rng.randint(1, len(actors)), rng.randint(1, len(actors))}
    unused = {rng.randint(1, len(items))}
    busy = [number for number in range(1, len(actors) + 1) if number not in idle]
    used = [number for number in range(1, len(items) + 1) if number not in unused]
    codes = [code for code, _ in fact.codes]
    return Database(
        domain,
        (
            (group.table, tuple(enumerate(group.names, 1))),
            (
                actor.table,
                tuple(
                    (
                        number,
                        name,
                        rng.choice(actor.categories),
                        rng.randint(*actor.numbers),
                        rng.randint(1, len(group.names)),
                    )
                    for number, name in enumerate(actors, 1)
                ),
            ),
            (
                item.table,
                tuple(
                    (number, name, rng.choice(item.categories), rng.randint(*item.numbers))
                    for number, name in enumerate(items, 1)
                ),
            ),
            (
                fact.table,
                tuple(
                    (
                        number,
                        rng.choice(busy),
                        rng.choice(used),
                        datetime.date.fromordinal(rng.randint(first, last)).isoformat(),
                        rng.randint(*fact.amounts),
                        rng.choices(codes, weights=(6, 3, 2))[0],
                    )
                    for number in range(1, _FACTS + 1)
                ),
            ),
        ),
    )
