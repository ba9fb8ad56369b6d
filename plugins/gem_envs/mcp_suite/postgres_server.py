"""PostgreSQL server: one per slot, in a box with its data in memory.

An episode cannot break or slow the server of another one, whatever limit it reaches. Nothing of a
server outlives gem.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import psycopg

from gem_core.errors import ConfigError
from gem_envs.mcp_suite.scratch import scratch_folder
from gem_tools.session.box import box_command, end_process, memory_file, start_process
from gem_tools.tool import ToolError

__all__ = ["SOCKETS", "Server", "end_server", "programs", "server_of", "sockets_of"]

SOCKETS = "/sockets"
"""The folder of the server's socket, as boxes see it."""
_SECONDS_TO_START = 300.0  # dozens of servers may start at once on a busy machine
_DISK_MB, _MEMORY_KB = 256, 1_500_000
_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_directories": SOCKETS,
    "max_connections": "16",
    "shared_buffers": "16MB",
    "dynamic_shared_memory_type": "mmap",
    "max_worker_processes": "0",
    "temp_file_limit": "64MB",
    "log_min_messages": "fatal",  # the model must not fill the log
    # The data need not survive a crash.
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "max_wal_size": "64MB",
    "min_wal_size": "32MB",
}
_servers: dict[tuple[int, int], Server] = {}
_templates: dict[int, tuple[str, str]] = {}
_lock = threading.Lock()


class Server:
    """A PostgreSQL server in a box."""

    def __init__(self, sockets: str) -> None:
        self.sockets = sockets
        for left in os.scandir(sockets):  # by a server that died
            os.unlink(left)
        template, self.password = _template()
        settings = " ".join(f"-c {name}={value}" for name, value in _SETTINGS.items())
        # The write-ahead log has a disk of its own: without space there, the server would end.
        script = (
            f"exec > {SOCKETS}/log 2>&1; set -e; ulimit -v {_MEMORY_KB}\n"
            f"cp -r {template} /tmp/data; mv /tmp/data/pg_wal /dev/shm/; "
            "ln -s /dev/shm/pg_wal /tmp/data/pg_wal\n"
            f"exec {programs()}/postgres -D /tmp/data {settings}"
        )
        command, settings_of_process = _box(script, [template], {SOCKETS: sockets})
        try:
            self.process = start_process(command, **settings_of_process)
        finally:
            _close(settings_of_process)
        self._wait()

    def connection(self, database: str, role: str, password: str, sockets: str = "") -> str:
        """Return the connection string of a database."""
        return (
            f"host={sockets or self.sockets} dbname={database} user={role} password={password} "
            "application_name=gem"
        )

    def create(self, name: str, password: str) -> None:
        """Create an empty database with a role of the same name, dropping old ones."""
        with self._admin() as admin:
            admin.execute(f"drop database if exists {name} with (force)")
            admin.execute(f"drop role if exists {name}")
            admin.execute(f"create role {name} login password '{password}' connection limit 8")
            admin.execute(f"create database {name} owner {name} template template0")
            admin.execute(f"revoke all on database {name} from public")

    def runs(self) -> bool:
        """Whether the server has not ended."""
        return self.process.poll() is None

    def close(self) -> None:
        """End the server and every query; its data vanish with the box."""
        end_process(self.process)

    def _admin(self) -> psycopg.Connection[Any]:
        """Connect as the superuser, to create and drop databases."""
        target = self.connection("postgres", "admin", self.password)
        return psycopg.connect(target, autocommit=True, connect_timeout=10)

    def _wait(self) -> None:
        deadline = time.monotonic() + _SECONDS_TO_START
        while True:
            try:
                with self._admin() as admin:
                    admin.execute("revoke connect on database postgres, template1 from public")
                return
            except psycopg.Error as error:
                if not self.runs() or time.monotonic() > deadline:
                    self.close()
                    log = Path(self.sockets, "log")
                    text = log.read_text("utf-8", "replace")[-800:] if log.exists() else ""
                    raise ToolError(f"PostgreSQL did not start: {text or error}") from None
                time.sleep(0.05)


def sockets_of(number: int) -> str:
    """Return the folder of the socket of a slot's server."""
    folder = os.path.join(scratch_folder(), f"postgres-{number}")
    os.makedirs(folder, exist_ok=True)
    if _uid():
        os.chown(folder, _uid(), _uid())
    return folder


def server_of(number: int) -> Server:
    """Return the server of a slot; start it if there is none, or if it has ended."""
    key = os.getpid(), number  # a fork has no servers
    server = _servers.get(key)
    if server is None or not server.runs():
        server = _servers[key] = Server(sockets_of(number))
    return server


def end_server(number: int) -> None:
    """End the server of a slot."""
    server = _servers.pop((os.getpid(), number), None)
    if server is not None:
        server.close()


@atexit.register
def _close_all() -> None:
    for pid, number in list(_servers):
        if pid == os.getpid():
            end_server(number)


def _template() -> tuple[str, str]:
    """Return a folder with the files of a new server, and its password; initdb takes a second."""
    with _lock:
        pid = os.getpid()
        if pid not in _templates:
            folder = os.path.join(scratch_folder(), "postgres-template")
            os.makedirs(folder, exist_ok=True)
            if _uid():
                os.chown(folder, _uid(), _uid())
            password = secrets.token_hex(16)
            script = (
                f"cd /tmp; (umask 077; echo {password} > password); "
                f"exec {programs()}/initdb -D {folder}/data -U admin --pwfile=password --no-sync "
                "--no-locale -E UTF8 --auth=scram-sha-256 --wal-segsize=1"
            )
            command, settings = _box(script, [], {folder: folder})
            settings |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            try:
                process = start_process(command, **settings)
            finally:
                _close(settings)
            assert process.stdout is not None
            output = process.stdout.read().decode("utf-8", "replace")
            process.wait()
            end_process(process)
            if process.returncode:
                raise ToolError(f"initdb failed: {output[-800:]}")
            _templates[pid] = f"{folder}/data", password
        return _templates[pid]


def _box(
    script: str, visible: list[str], folders: dict[str, str]
) -> tuple[list[str], dict[str, Any]]:
    """Return the command of a script in a box, and the settings of its process."""
    uid = _uid()
    user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"] if uid else []
    # initdb looks its user up
    passwd = memory_file(f"postgres:x:{uid or 1000}:{uid or 1000}::/tmp:/bin/sh\n".encode())
    command = box_command(
        [*user, "/bin/sh", "-c", script],
        uid=1000,
        capabilities=("CAP_SETUID", "CAP_SETGID"),
        visible=visible,
        folders=folders,
        files={"/etc/passwd": passwd},
        disk_mb=_DISK_MB,
    )
    return command, {
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
        "env": {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "TZ": "UTC"},
        "pass_fds": [passwd],
    }


def _close(settings: dict[str, Any]) -> None:
    for descriptor in settings["pass_fds"]:
        os.close(descriptor)


def _uid() -> int:
    """Return the user of the servers if gem runs as root, which PostgreSQL does not; else 0."""
    return 1_600_000_000 + os.getpid() % 10_000 if os.geteuid() == 0 else 0


def programs() -> str:
    """Return the folder of PostgreSQL's programs; Debian keeps them off the path."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: float(p.parent.name))
    for folder in [*reversed(folders), *(Path(p) for p in os.environ.get("PATH", "").split(":"))]:
        if (folder / "initdb").is_file() and (folder / "postgres").is_file():
            return str(folder)
    if shutil.which("postgres"):
        return os.path.dirname(str(shutil.which("postgres")))
    raise ConfigError("mcp:Postgres needs PostgreSQL: apt-get install postgresql")
