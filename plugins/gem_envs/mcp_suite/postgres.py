"""PostgreSQL: one server for all episodes of a process, and one database per episode.

The server runs in a box with its data in memory, so nothing of it outlives gem. Each episode has
its own role, which may connect to its own database only.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

from gem_core.errors import ConfigError
from gem_envs.mcp_suite.boxes import DATA, SERVERS, boxed_server
from gem_envs.mcp_suite.pool import Slot
from gem_envs.mcp_suite.scratch import scratch_folder
from gem_envs.mcp_suite.sql import MOST_ROWS, Dump, SqlSetup, plain
from gem_tools.session.box import box_command, memory_file, start_process
from gem_tools.tool import ToolError

__all__ = ["PostgresFamily", "PostgresState"]

_SOCKETS = "/sockets"
_SECONDS_TO_START, _SECONDS_TO_READ = 60.0, 20.0
_MOST_BYTES = 8_000_000
_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_directories": _SOCKETS,
    "max_connections": "200",
    "shared_buffers": "32MB",
    "dynamic_shared_memory_type": "mmap",
    # The data need not survive a crash.
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "max_wal_size": "64MB",
    "min_wal_size": "32MB",
}
_servers: dict[int, _Server] = {}
_lock = threading.Lock()


class _Server:
    """A PostgreSQL server in a box."""

    def __init__(self) -> None:
        programs = _programs()
        self.password = secrets.token_hex(16)
        self.sockets = os.path.join(scratch_folder(), "postgres")
        os.makedirs(self.sockets, exist_ok=True)
        for left in os.scandir(self.sockets):  # by a server that died; its slots keep this folder
            os.unlink(left)
        uid = 0
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            uid = 1_600_000_000 + os.getpid() % 10_000
            os.chown(self.sockets, uid, uid)
        settings = " ".join(f"-c {name}={value}" for name, value in _SETTINGS.items())
        script = (
            f"set -e; cd /tmp; (umask 077; echo {self.password} > password)\n"
            f"{programs}/initdb -D /tmp/data -U admin --pwfile=password --no-sync --no-locale "
            "-E UTF8 --auth=scram-sha-256 > initdb.log 2>&1 || { cat initdb.log; exit 1; }\n"
            f"exec {programs}/postgres -D /tmp/data {settings} 2>&1"
        )
        user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"] if uid else []
        passwd = memory_file(f"postgres:x:{uid or 1000}:{uid or 1000}::/tmp:/bin/sh\n".encode())
        command = box_command(
            [*user, "/bin/sh", "-c", script],
            uid=1000,
            capabilities=("CAP_SETUID", "CAP_SETGID"),
            folders={_SOCKETS: self.sockets},
            files={"/etc/passwd": passwd},  # initdb looks its user up
            disk_mb=2048,
        )
        try:
            self.process = start_process(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "TZ": "UTC"},
                pass_fds=[passwd],
                start_new_session=True,
            )
        finally:
            os.close(passwd)
        self._wait()

    def connection(self, database: str, role: str, password: str, sockets: str = "") -> str:
        """Return the connection string of a database."""
        return (
            f"host={sockets or self.sockets} dbname={database} user={role} password={password} "
            "application_name=gem"
        )

    def admin(self) -> psycopg.Connection[Any]:
        """Connect as the superuser, to create and drop databases."""
        target = self.connection("postgres", "admin", self.password)
        return psycopg.connect(target, autocommit=True, connect_timeout=10)

    def create(self, name: str, password: str) -> None:
        """Create an empty database with a role of the same name, dropping old ones."""
        with self.admin() as admin:
            admin.execute(f"drop database if exists {name} with (force)")
            admin.execute(f"drop role if exists {name}")
            admin.execute(f"create role {name} login password '{password}' connection limit 8")
            admin.execute(f"create database {name} owner {name} template template0")
            admin.execute(f"revoke all on database {name} from public")

    def close(self) -> None:
        """End the server; its data vanish with the box."""
        self.process.kill()
        self.process.wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + _SECONDS_TO_START
        while True:
            try:
                with self.admin() as admin:
                    admin.execute("revoke connect on database postgres, template1 from public")
                break
            except psycopg.Error as error:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.process.kill()
                    output = self.process.communicate()[0].decode("utf-8", "replace")[-800:]
                    raise ToolError(f"PostgreSQL did not start: {output or error}") from None
                time.sleep(0.05)
        threading.Thread(target=self._drain, name="gem-postgres", daemon=True).start()

    def _drain(self) -> None:
        """Read the server's log, so that its pipe never fills."""
        assert self.process.stdout is not None
        with self.process.stdout as log:
            while log.read(1 << 16):
                pass


class PostgresState:
    """The final data of an episode's database."""

    def __init__(self, connection: str, expected: Dump, probes: tuple[str, ...]) -> None:
        self.connection, self.expected, self.probes = connection, expected, probes

    def as_requested(self) -> bool:
        """Whether the data equal those of the reference solution."""
        try:
            with (
                psycopg.connect(self.connection, connect_timeout=10) as database,
                _cancelled_after(_SECONDS_TO_READ, database),
            ):
                return _dump(database, self.probes) == self.expected
        except psycopg.Error:  # the model's views, locks or settings
            return False


class PostgresFamily:
    """A PostgreSQL database, served by a program of gem."""

    name = "Postgres"

    def __init__(self) -> None:
        _programs()  # raise now if PostgreSQL is missing

    def servers(self, slot: Slot) -> Mapping[str, Mapping[str, Any]]:
        folders = {DATA: slot.folder, _SOCKETS: _server().sockets}
        script, arguments = str(SERVERS / "postgres.py"), [f"{DATA}/connection"]
        return {"postgres": boxed_server(script, arguments, folders, slot.uid)}

    def prepare(self, slot: Slot, setup: SqlSetup) -> None:
        server, name, password = _server(), f"episode_{slot.number}", secrets.token_hex(16)
        server.create(name, password)
        connection = server.connection(name, name, password)
        with psycopg.connect(connection, connect_timeout=10) as database:
            database.execute(setup.script.encode())
            database.commit()
            for statement in setup.reference:
                database.execute(statement.encode())
            expected = _dump(database, setup.probes)
            database.rollback()
        path = os.path.join(slot.folder, "connection")
        Path(path).write_text(server.connection(name, name, password, _SOCKETS), encoding="utf-8")
        os.chmod(path, 0o600)
        slot.own_all()
        slot.setup = (connection, expected, setup.probes)

    def state(self, slot: Slot) -> PostgresState:
        return PostgresState(*slot.setup)


@contextmanager
def _cancelled_after(seconds: float, database: psycopg.Connection[Any]) -> Iterator[None]:
    """Cancel what runs on a connection after some time: a view can end the server's own limit."""
    done = threading.Event()

    def cancel() -> None:
        done.wait(seconds)
        while not done.wait(0.5):  # again: one may arrive between two statements
            with suppress(psycopg.Error):
                database.cancel()

    thread = threading.Thread(target=cancel, name="gem-postgres-deadline", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _dump(database: psycopg.Connection[Any], probes: tuple[str, ...]) -> Dump:
    """Read all tables and views of the schema public, as the role of the episode."""
    database.execute("set local statement_timeout = '5s'")
    database.execute("set local search_path = public")
    kinds = database.execute(
        "select table_name, table_type from information_schema.tables "
        "where table_schema = 'public' order by 1"
    ).fetchall()
    dump: Dump = {}
    for name, kind in kinds:
        rows = f'select * from public."{name}" limit {MOST_ROWS + 1}'
        sizes = database.execute(f"select sum(octet_length(r::text)) from ({rows}) r".encode())
        if (sizes.fetchall()[0][0] or 0) > _MOST_BYTES:
            dump[name] = "too large"
            continue
        cursor = database.execute(rows.encode())
        columns = [column.name for column in cursor.description or ()]
        dump[name] = (kind, columns, sorted((tuple(map(plain, row)) for row in cursor), key=repr))
    for probe in probes:
        database.execute("savepoint probe")
        try:
            cursor = database.execute(probe.encode())
            rows = cursor.fetchall() if cursor.description else []
            dump[probe] = sorted((tuple(map(plain, row)) for row in rows), key=repr)
        except psycopg.errors.IntegrityError:
            database.execute("rollback to savepoint probe")
            dump[probe] = "refused"
    return dump


def _server() -> _Server:
    """Return the server of this process, starting it once."""
    with _lock:
        pid = os.getpid()  # the threads and sockets of a server do not survive a fork
        if pid not in _servers or _servers[pid].process.poll() is not None:
            _servers.clear()
            _servers[pid] = _Server()
        return _servers[pid]


@atexit.register
def _close() -> None:
    server = _servers.pop(os.getpid(), None)
    if server is not None:
        server.close()


def _programs() -> str:
    """Return the folder of PostgreSQL's programs; Debian keeps them off the path."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: float(p.parent.name))
    for folder in [*reversed(folders), *(Path(p) for p in os.environ.get("PATH", "").split(":"))]:
        if (folder / "initdb").is_file() and (folder / "postgres").is_file():
            return str(folder)
    if shutil.which("postgres"):
        return os.path.dirname(str(shutil.which("postgres")))
    raise ConfigError("mcp:Postgres needs PostgreSQL: apt-get install postgresql")
