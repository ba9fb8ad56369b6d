"""Reads a SQLite database that a model changed, in a process with limited memory.

A view can build values without bound, and Python 3.10 cannot limit them. Usage: sqlite_reader.py
DATABASE, with the probes and the unordered tables as JSON in stdin; the content as JSON in stdout.
"""

from __future__ import annotations

import json
import resource
import sqlite3
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["UNREADABLE", "plain", "read"]

UNREADABLE = 3
"""The exit status if the database is too large, too slow or invalid."""
_MOST_MEMORY = 512 << 20
_MOST_SECONDS = 30
_MOST_ROWS, _MOST_CHARACTERS = 1000, 8_000_000
_MOST_STEPS, _STEPS_PER_CALL = 20_000_000, 10_000
"""Steps of SQLite's virtual machine; they bound the time on any machine alike."""


def main() -> int:
    """Print the schema and the data of a database."""
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    # At the hard limit the kernel sends SIGKILL, which could also come from the machine.
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_SECONDS, _MOST_SECONDS + 5))
    setup = json.load(sys.stdin)
    try:
        database = sqlite3.connect(":memory:")
        source = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
        # Raises if a statement of the model still locks the file; `backup` would wait forever.
        source.execute("begin")
        source.execute("select count(*) from sqlite_master").fetchall()
        source.backup(database)
        steps = iter(range(_MOST_STEPS // _STEPS_PER_CALL))
        database.set_progress_handler(lambda: next(steps, None) is None, _STEPS_PER_CALL)
        json.dump(read(database, setup["probes"], setup["unordered"]), sys.stdout)
    except (sqlite3.Error, MemoryError, OverflowError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}")
        return UNREADABLE
    return 0


def read(
    database: sqlite3.Connection, probes: Sequence[str], unordered: Sequence[str]
) -> dict[str, Any]:
    """Return the schema and the data; the probes change the database."""
    schema: dict[str, dict[str, str]] = {}
    data: dict[str, Any] = {}
    names = []
    for kind, name, table, sql in database.execute(
        "select type, name, tbl_name, sql from sqlite_master order by name"
    ):
        if table.startswith("sqlite_"):  # SQLite's own, such as the counters of autoincrement
            continue
        schema.setdefault(table, {})[f"{kind} {name}"] = sql or ""
        if kind in ("table", "view"):
            names.append((kind, name))
    left = _MOST_CHARACTERS
    for kind, name in names:
        quoted = name.replace('"', '""')
        cursor = database.execute(f'select * from "{quoted}" limit {_MOST_ROWS + 1}')
        columns = [str(column[0]) for column in cursor.description]
        rows = []
        for row in cursor:
            left -= sum(len(value) for value in row if isinstance(value, (str, bytes)))
            if left < 0:
                raise OverflowError(f"{name} is too large")
            rows.append([plain(value) for value in row])
        if name in unordered and "id" in columns:
            number = columns.index("id")
            columns.pop(number)
            for values in rows:
                values.pop(number)
        data[name] = [kind, columns, sorted(rows, key=repr)]
    database.execute("pragma foreign_keys = on")
    for probe in probes:
        try:
            rows = [[plain(value) for value in row] for row in database.execute(probe)]
            data[probe] = sorted(rows, key=repr)
        except sqlite3.IntegrityError:
            data[probe] = "refused"
    return {"schema": schema, "data": data}


def plain(value: Any) -> Any:
    """Return a value as JSON has it, in which equal numbers are equal, whatever their type."""
    if isinstance(value, (bool, str, type(None))):
        return value
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    try:
        return round(float(value), 4)
    except (TypeError, ValueError, OverflowError):
        return str(value)


if __name__ == "__main__":
    sys.exit(main())
