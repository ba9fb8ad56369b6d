"""PostgreSQL databases: the initial data of an episode and the check of its final data."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier, Literal

from gem_envs.mcp_suite.boxes import DATA, SERVERS, boxed_server
from gem_envs.mcp_suite.pool import Family, Slot
from gem_envs.mcp_suite.postgres_server import (
    SOCKETS,
    Server,
    end_server,
    programs,
    server_of,
    sockets_of,
)
from gem_envs.mcp_suite.sql import Schema, SqlSetup, only_requested
from gem_envs.mcp_suite.sqlite_reader import plain
from gem_tools.tool import ToolError

__all__ = ["PostgresFamily", "PostgresState"]

_SECONDS_TO_READ = 20.0
_MOST_ROWS, _MOST_BYTES = 1000, 8_000_000
_SCHEMA = Path(__file__).with_name("postgres_schema.sql")
# Rows are computed once: a view may return other rows the second time.
_ROWS = SQL("""
    with gem_rows as materialized (select * from public.{name} limit {most}),
    gem_size as (
        select count(*) as rows, coalesce(sum(octet_length((gem_rows.*)::text)), 0) as bytes
        from gem_rows
    )
    select gem_size.rows, gem_size.bytes, gem_rows.*
    from gem_size left join gem_rows on gem_size.bytes <= {bytes}
""")


class PostgresFamily(Family):
    """A PostgreSQL database, served by a program of gem."""

    name = "Postgres"

    def __init__(self) -> None:
        programs()  # raise now if PostgreSQL is missing

    def servers(self, slot: Slot) -> Mapping[str, Mapping[str, Any]]:
        folders = {DATA: slot.folder, SOCKETS: sockets_of(slot.number)}
        script, arguments = str(SERVERS / "postgres.py"), [f"{DATA}/connection"]
        return {"postgres": boxed_server(script, arguments, folders, slot.uid)}

    def prepare(self, slot: Slot, setup: SqlSetup) -> None:
        server, name = server_of(slot.number), f"episode_{slot.number}"
        password = secrets.token_hex(16)
        server.create(name, password)
        connection = server.connection(name, name, password)
        with psycopg.connect(connection, connect_timeout=10) as database:
            database.execute(setup.script.encode())
            before = _schema(database)
            database.commit()
            for statement in setup.reference:
                database.execute(statement.encode())
            expected = _schema(database)
            data = _data(database, expected, setup.probes)
            database.rollback()
        path = os.path.join(slot.folder, "connection")
        Path(path).write_text(server.connection(name, name, password, SOCKETS), encoding="utf-8")
        os.chmod(path, 0o600)
        slot.own_all()
        slot.setup = PostgresState(server, connection, before, expected, data, setup.probes)

    def state(self, slot: Slot) -> PostgresState:
        state: PostgresState = slot.setup
        return state

    def end(self, slot: Slot) -> None:
        end_server(slot.number)


class PostgresState:
    """The final data of an episode's database."""

    def __init__(
        self,
        server: Server,
        connection: str,
        before: Schema,
        expected: Schema,
        data: Mapping[str, Any],
        probes: tuple[str, ...],
    ) -> None:
        self.server, self.connection = server, connection
        self.before, self.expected, self.data, self.probes = before, expected, data, probes

    def as_requested(self) -> bool:
        """Whether the data equal those of the reference solution."""
        if not self.server.runs():
            raise ToolError("PostgreSQL ended during the episode")
        # A query of the model can lift every limit of the server and survive its cancellation.
        deadline = threading.Timer(_SECONDS_TO_READ, self.server.close)
        deadline.start()
        try:
            with psycopg.connect(self.connection, connect_timeout=10) as database:
                final = _schema(database)
                return (
                    only_requested(self.before, self.expected, final)
                    and _data(database, final, self.probes) == self.data
                )
        except psycopg.Error:  # the model's views, locks or settings
            return False
        finally:
            deadline.cancel()


def _schema(database: psycopg.Connection[Any]) -> Schema:
    """Return the definitions of the database, read as the role of the episode."""
    database.execute("set local search_path = pg_catalog")
    schema: dict[str, dict[str, str]] = {}
    for name, key, definition in database.execute(_SCHEMA.read_bytes()):
        schema.setdefault(name, {})[key] = definition
    return schema


def _data(
    database: psycopg.Connection[Any], schema: Schema, probes: tuple[str, ...]
) -> dict[str, Any]:
    """Return the rows of all tables and views, and what the probes show."""
    database.execute("set local search_path = public")
    data: dict[str, Any] = {}
    for name in schema:
        if "relation" not in schema[name]:
            continue
        query = _ROWS.format(
            name=Identifier(name), most=Literal(_MOST_ROWS + 1), bytes=Literal(_MOST_BYTES)
        )
        cursor = database.execute(query)
        columns = [column.name for column in (cursor.description or ())[2:]]
        rows = cursor.fetchall()
        count, size = rows[0][:2]
        data[name] = "too large" if size > _MOST_BYTES else [columns, _sorted(rows[:count], 2)]
    for probe in probes:
        database.execute("savepoint probe")
        try:
            cursor = database.execute(probe.encode())
            data[probe] = _sorted(cursor.fetchall() if cursor.description else [])
        except psycopg.errors.IntegrityError:
            database.execute("rollback to savepoint probe")
            data[probe] = "refused"
    return data


def _sorted(rows: list[tuple[Any, ...]], start: int = 0) -> list[list[Any]]:
    return sorted(([plain(value) for value in row[start:]] for row in rows), key=repr)
