"""SQL tasks: expected data come from a reference solution that gem runs on its own copy.

The final tables, views and definitions are compared with those of the copy: a change that nobody
asked for fails the task. In a table that the reference solution alters, the model may choose other
types and constraints, so only the definitions that stay are compared there, and probes show
what constraints, triggers and functions do.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gem_envs.mcp_suite import sqlite_reader
from gem_envs.mcp_suite.task import Call, SuiteTask
from gem_tools.tool import ToolError

__all__ = ["Schema", "SqlSetup", "SqliteState", "only_requested", "sql_task", "write_database"]

Schema = Mapping[str, Mapping[str, str]]
"""The definitions of each table or view (columns, constraints, indexes, triggers) by name."""
_SECONDS_TO_READ = 120.0


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
        before, expected = self._reference()
        final = _read(self.path, self.setup)
        return (
            final is not None
            and only_requested(before, expected["schema"], final["schema"])
            and final["data"] == expected["data"]
        )

    def _reference(self) -> tuple[Schema, dict[str, Any]]:
        """Return the schema before the reference solution, and the content after it."""
        database = sqlite3.connect(":memory:")
        try:
            database.executescript(self.setup.script)
            before = sqlite_reader.read(database, (), ())["schema"]
            for statement in self.setup.reference:
                database.execute(statement)
            return before, sqlite_reader.read(database, self.setup.probes, self.setup.unordered)
        finally:
            database.close()


def _read(path: str, setup: SqlSetup) -> dict[str, Any] | None:
    """Return the content of a database, or None if the model made it unreadable."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", sqlite_reader.__file__, path],
        input=json.dumps({"probes": setup.probes, "unordered": setup.unordered}),
        capture_output=True,
        text=True,
        timeout=_SECONDS_TO_READ,
        check=False,
    )
    if done.returncode in (sqlite_reader.UNREADABLE, -signal.SIGXCPU):
        return None
    if done.returncode:
        raise ToolError(f"cannot read the database: {done.stderr[-500:] or done.returncode}")
    content: dict[str, Any] = json.loads(done.stdout)
    return content


def only_requested(before: Schema, expected: Schema, final: Schema) -> bool:
    """Whether no definition changed that the reference solution left as it was."""
    for name in {*before, *expected, *final}:
        old, new, now = (schema.get(name, {}) for schema in (before, expected, final))
        if old == new and now != new:
            return False
        if any(now.get(key) != old[key] for key in old if new.get(key) == old[key]):
            return False
    return True


def write_database(path: str, script: str) -> None:
    """Create a database file."""
    if os.path.exists(path):
        os.unlink(path)
    database = sqlite3.connect(path)
    try:
        database.executescript(f"pragma synchronous = off; begin; {script} commit;")
    finally:
        database.close()
