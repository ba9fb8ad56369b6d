"""Launch: what every process of a sandbox is started with: the command, in bubblewrap or not, its environment and its rights."""

from __future__ import annotations

import contextlib
import marshal
import math
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from gem_core.errors import ConfigError
from gem_tools.sandbox import seccomp

__all__ = ["Plan", "SandboxLimits", "bubblewrap", "bubblewrap_version"]

_MB = 1 << 20
_START = "import marshal, sys; exec(marshal.loads(bytes.fromhex(sys.argv.pop())))"


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """What one call may use."""

    seconds: float = 5.0
    """Wall time, from the moment a waiting worker is given the code."""
    cpu_seconds: int | None = None
    """Processor time of each process; None is the wall time, rounded up."""
    memory_mb: int = 1024
    """Address space of each process."""
    processes: int = 16
    """Processes and threads at one time; the fallback counts threads only where gem runs as root."""
    file_mb: int = 16
    """The size of one file."""
    disk_mb: int = 64
    """All files together."""
    output_kb: int = 64
    """What is kept of each of stdout and stderr; a program that writes over 64 MB is stopped."""

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if value is None and entry.name == "cpu_seconds":
                continue
            if (
                isinstance(value, bool)
                or not isinstance(value, (int, float))
                or not 0 < value < math.inf
            ):
                raise ConfigError(
                    f"{entry.name} of a sandbox must be a number above 0; given: {value!r}"
                )


class Plan:
    """The command, environment and settings every worker of a sandbox is started with."""

    def __init__(
        self,
        parts: Sequence[str],
        limits: SandboxLimits,
        packages: bool = False,
        preload: Sequence[str] = (),
    ) -> None:
        """`parts`: what is to be in force, of `bubblewrap`, `uid`, `landlock`, `seccomp`; limits always are."""
        self.parts = tuple(parts)
        self.python = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
        self.path = [
            p
            for p in dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
            if packages and p
        ]
        self.seen = [
            p
            for p in dict.fromkeys((os.path.realpath(sys.base_prefix), *self.path))
            if not p.startswith("/usr/")
        ]
        self.boxed = "bubblewrap" in self.parts
        self.limits = {
            "RLIMIT_AS": int(limits.memory_mb * _MB),
            "RLIMIT_FSIZE": int(limits.file_mb * _MB),
            "RLIMIT_CORE": 0,
            "RLIMIT_NOFILE": 256,
        }
        if not hasattr(
            os, "memfd_create"
        ):  # not Linux: the address space of a process cannot be limited there
            del self.limits["RLIMIT_AS"]
        if self.boxed:
            # bubblewrap's own first process counts among those of the user namespace
            self.limits["RLIMIT_NPROC"] = int(limits.processes) + (os.geteuid() != 0)
        elif "uid" in self.parts:
            self.limits["RLIMIT_NPROC"] = int(
                limits.processes
            )  # counted for a user that nobody else is
        elif "seccomp" not in self.parts and sys.platform == "linux" and os.geteuid() != 0:
            # Counted with everything else the user runs, and never for root: the best there is without a filter. With one there
            # are no processes to count, and a program would lose its threads to whatever else the user starts.
            self.limits["RLIMIT_NPROC"] = _tasks_of_user() + int(limits.processes)
        self.preload = preload
        self.disk = int(limits.disk_mb * _MB)

    def command(self, worker: str, seccomp_fd: int, info_fd: int) -> list[str]:
        """What to start: Python, in bubblewrap or not."""
        # -S and no user site: no start-up files. Not -I, which would make the order of sets differ from call to call.
        python = [self.python, "-s", "-S", "-B", "-c", _START, worker, _source()]
        if not self.boxed:
            return python
        command = [
            bubblewrap(),
            "--die-with-parent",
            "--new-session",
            "--unshare-ipc",
            "--unshare-pid",
            "--unshare-net",
        ]
        command += ["--unshare-uts", "--unshare-cgroup-try", "--hostname", "sandbox"]
        if os.geteuid() == 0:
            # Root's processes are never counted against a limit, so the worker goes on as a user nobody else is.
            command += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        else:
            command += ["--unshare-user"]
        command += ["--ro-bind", "/usr", "/usr", "--perms", "0755", "--dir", "/etc"]
        for path in (
            "/etc/ld.so.cache",
            "/etc/alternatives",
        ):  # on Debian, awk is a link to a link there
            command += ["--ro-bind-try", path, path]
        for name in ("bin", "sbin", "lib", "lib32", "lib64"):
            if os.path.islink(f"/{name}"):
                command += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
            elif os.path.isdir(f"/{name}"):
                command += ["--ro-bind", f"/{name}", f"/{name}"]
        # Before the paths to be seen: an interpreter may live under /tmp.
        command += ["--perms", "1777", "--size", str(self.disk), "--tmpfs", "/tmp"]
        for path in self.seen:
            for parent in reversed(Path(path).parents[:-1]):
                if parent != Path("/tmp"):  # bubblewrap itself would make them for their owner only
                    command += ["--perms", "0755", "--dir", str(parent)]
            command += ["--ro-bind", path, path]
        # No /proc: nothing needs it, and what is not there cannot be read.
        command += [
            "--dev",
            "/dev",
            "--perms",
            "1777",
            "--size",
            str(self.disk),
            "--tmpfs",
            "/dev/shm",
            "--remount-ro",
            "/dev",
        ]
        command += ["--remount-ro", "/", "--chdir", "/tmp"]
        command += ["--info-fd", str(info_fd)]
        if seccomp_fd >= 0:
            command += ["--seccomp", str(seccomp_fd)]
        return [*command, "--", *python]

    def environment(self, home: str) -> dict[str, str]:
        """All a program sees of the environment."""
        one_thread = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": home,
            "TMPDIR": home,
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "PYTHONHASHSEED": "0",
            "PYTHONIOENCODING": "utf-8:backslashreplace",
            **one_thread,
        }

    def asked(self, home: str, report: int, uid: int) -> dict[str, Any]:
        """What a worker is told of its rights."""
        parts = self.parts
        asked: dict[str, Any] = {
            "limits": self.limits,
            "report": report,
            "path": self.path,
            "preload": list(self.preload),
            "uid": uid,
        }
        if not self.boxed and "landlock" in parts:
            system = [
                "/usr",
                "/bin",
                "/sbin",
                "/lib",
                "/lib32",
                "/lib64",
                "/etc/ld.so.cache",
                "/dev/urandom",
                "/dev/zero",
            ]
            asked["landlock"] = {"read": [*system, *self.seen], "write": [home, "/dev/null"]}
        if not self.boxed and "seccomp" in parts:
            asked["seccomp"] = seccomp.BARE.hex()
        return asked


@lru_cache(maxsize=1)
def bubblewrap() -> str:
    return shutil.which("bwrap") or ""


@lru_cache(maxsize=1)
def bubblewrap_version() -> str:
    said = subprocess.run(
        [bubblewrap(), "--version"], capture_output=True, text=True, check=False
    ).stdout.split()
    return said[-1] if said else "0"


@lru_cache(maxsize=1)
def _source() -> str:
    """The worker, compiled once: the interpreter that runs it is the one that compiles it."""
    text = Path(__file__).with_name("worker.py").read_text(encoding="utf-8")
    return marshal.dumps(compile(text, "worker.py", "exec", optimize=0)).hex()


def _tasks_of_user() -> int:
    """How many processes and threads the user has just now."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid == os.getuid():
                count += sum(1 for _ in (process / "task").iterdir())
    return count
