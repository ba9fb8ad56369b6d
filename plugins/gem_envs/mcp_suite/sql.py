"""SQL tasks: expected data come from a reference solution that gem runs on its own copy.

The final tables and views are compared as a whole: a change that nobody asked for fails the task.
The model wrote the views, so gem reads at most one row more than it expects, and no large values.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gem_envs.mcp_suite.task import Call, SuiteTask

__all__ = ["MOST_ROWS", "Dump", "SqlSetup", "SqliteState", "plain", "sql_task", "write_database"]

Dump = dict[str, Any]
"""The type, columns and sorted rows of each table and view, and the outcome of each probe."""
MOST_ROWS = 1000
"""Rows of a table or view that gem reads; the tasks have fewer."""
_LARGEST_VALUE = 1_000_000
_MOST_OPERATIONS = 20_000_000


@dataclass(frozen=True, slots=True)
class SqlSetup:
    """The initial data of a database and what is expected in the end."""

    script: str
    reference: tuple[str, ...]
    """Statements that solve the task."""
    probes: tuple[str, ...] = ()
    """Statements that show what constraints, triggers or functions do; they change a copy."""
    unordered: tuple[str, ...] = ()
    """Tables whose `id` does not matter, because the server assigns it."""


def sql_task(
    instruction: str,
    script: str,
    reference: Sequence[str],
    look: Sequence[Call],
    write: Callable[[str], Call],
    probes: Sequence[str] = (),
) -> SuiteTask:
    """Return a task whose reference solution is SQL; the expert looks first, then runs it."""
    setup = SqlSetup(script, tuple(reference), tuple(probes))
    calls = (*look, *(write(statement) for statement in reference))
    return SuiteTask(instruction, setup, lambda state: bool(state.as_requested()), calls)


class SqliteState:
    """The final data of a SQLite database."""

    def __init__(self, path: str, setup: SqlSetup) -> None:
        self.path, self.setup = path, setup

    def as_requested(self) -> bool:
        """Whether the data equal those of the reference solution."""
        expected = sqlite3.connect(":memory:")
        final = sqlite3.connect(":memory:")
        try:
            expected.executescript(self.setup.script)
            for statement in self.setup.reference:
                expected.execute(statement)
            source = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)
            try:
                source.backup(final)
            finally:
                source.close()
            if sys.version_info >= (3, 11):
                final.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_VALUE)
                final.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, 50)
            budget = iter(range(_MOST_OPERATIONS // 10_000))
            final.set_progress_handler(lambda: next(budget, None) is None, 10_000)
            return _dump(final, self.setup) == _dump(expected, self.setup)
        except sqlite3.Error:  # the model's views, triggers or locks
            return False
        finally:
            expected.close()
            final.close()


def write_database(path: str, script: str) -> None:
    """Create a database file."""
    if os.path.exists(path):
        os.unlink(path)
    database = sqlite3.connect(path)
    try:
        database.executescript(f"pragma synchronous = off; begin; {script} commit;")
    finally:
        database.close()


def plain(value: Any) -> Any:
    """Return a value in which equal numbers are equal, whatever their type."""
    if isinstance(value, (bool, str, bytes, type(None))):
        return value
    try:
        return round(float(value), 4)
    except (TypeError, ValueError):
        return str(value)


def _dump(database: sqlite3.Connection, setup: SqlSetup) -> Dump:
    kinds = dict(
        database.execute(
            "select name, type from sqlite_master where type in ('table', 'view') "
            "and name not like 'sqlite_%' order by 1"
        )
    )
    dump: Dump = {}
    for name, kind in kinds.items():
        cursor = database.execute(f'select * from "{name}" limit {MOST_ROWS + 1}')
        columns = [str(column[0]) for column in cursor.description]
        rows = [tuple(map(plain, row)) for row in cursor]
        if name in setup.unordered and "id" in columns:
            skipped = columns.index("id")
            columns.pop(skipped)
            rows = [(*row[:skipped], *row[skipped + 1 :]) for row in rows]
        dump[name] = (kind, columns, sorted(rows, key=repr))
    database.execute("pragma foreign_keys = on")
    for probe in setup.probes:
        try:
            dump[probe] = sorted((tuple(map(plain, r)) for r in database.execute(probe)), key=repr)
        except sqlite3.IntegrityError:
            dump[probe] = "refused"
    return dump
