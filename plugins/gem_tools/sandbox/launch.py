"""Launch plan: the command, environment and rights of every sandbox process."""

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

__all__ = ["Plan", "SandboxLimits", "bubblewrap", "bubblewrap_version", "worker_text"]

_MB = 1 << 20
_START = "import marshal, sys; exec(marshal.loads(bytes.fromhex(sys.argv.pop())))"


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """The limits of one call."""

    seconds: float = 5.0
    """Wall time, from the moment a waiting worker receives the code."""
    cpu_seconds: int | None = None
    """Processor time of each process; None is the wall time, rounded up."""
    memory_mb: int = 1024
    """Address space of each process; with a memory cgroup, also the memory of all together."""
    processes: int = 16
    """Concurrent processes and threads; the fallback counts threads only if gem runs as root."""
    file_mb: int = 16
    """The size of one file."""
    disk_mb: int = 64
    """The size of all files."""
    output_kb: int = 64
    """The kept part of stdout and of stderr; a program that writes over 64 MB is stopped."""

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if value is None and entry.name == "cpu_seconds":
                continue
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not 0 < value < math.inf:
                raise ConfigError(
                    f"{entry.name} of a sandbox must be a positive number; got {value!r}"
                )


class Plan:
    """The command, environment and settings of every worker of a sandbox."""

    def __init__(
        self,
        parts: Sequence[str],
        limits: SandboxLimits,
        packages: bool = False,
        preload: Sequence[str] = (),
    ) -> None:
        """Plan a sandbox.

        `parts` are the mechanisms to use: `bubblewrap`, `cgroup`, `uid`, `landlock`, `seccomp`. The
        limits always apply.
        """
        self.parts = tuple(parts)
        self.python = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
        libraries = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
        self.path = [p for p in dict.fromkeys(libraries) if packages and p]
        folders = (os.path.realpath(sys.base_prefix), *self.path)
        self.visible = [p for p in dict.fromkeys(folders) if not p.startswith("/usr/")]
        self.boxed = "bubblewrap" in self.parts
        self.limits = {
            "RLIMIT_AS": int(limits.memory_mb * _MB),
            "RLIMIT_FSIZE": int(limits.file_mb * _MB),
            "RLIMIT_CORE": 0,
            "RLIMIT_NOFILE": 128,  # also limits the memory in socket buffers
        }
        if not hasattr(os, "memfd_create"):  # only Linux limits the address space
            del self.limits["RLIMIT_AS"]
        if self.boxed:
            # bubblewrap's own first process counts in the user namespace.
            self.limits["RLIMIT_NPROC"] = int(limits.processes) + (os.geteuid() != 0)
        elif "uid" in self.parts:  # the uid has no other processes
            self.limits["RLIMIT_NPROC"] = int(limits.processes)
        elif "seccomp" not in self.parts and sys.platform == "linux" and os.geteuid() != 0:
            # The kernel counts all processes of the user, and ignores the limit for root. With a
            # seccomp filter a program has no processes to count, and other programs of the user
            # would use up the threads it may start.
            self.limits["RLIMIT_NPROC"] = _tasks_of_user() + int(limits.processes)
        self.preload = preload
        self.disk = int(limits.disk_mb * _MB)
        self.memory = int(limits.memory_mb * _MB) + 2 * self.disk
        """The memory of a call, with the files in /tmp and /dev/shm, which are in memory, too."""

    def command(self, settings: str, seccomp_fd: int, info_fd: int) -> list[str]:
        """Return the command that starts Python, with or without bubblewrap."""
        # -S and -s skip all start-up files. -I would ignore PYTHONHASHSEED, and the order of sets
        # would differ between calls.
        python = [self.python, "-s", "-S", "-B", "-c", _START, settings, _source()]
        if not self.boxed:
            return python
        command = [bubblewrap(), "--die-with-parent", "--new-session"]
        command += ["--unshare-ipc", "--unshare-pid", "--unshare-net"]
        command += ["--unshare-uts", "--unshare-cgroup-try", "--hostname", "sandbox"]
        if os.geteuid() == 0:
            # The kernel ignores the process limit for root, so the worker changes to an unused uid.
            command += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        else:
            command += ["--unshare-user"]
        command += ["--ro-bind", "/usr", "/usr", "--perms", "0755", "--dir", "/etc"]
        for path in ("/etc/ld.so.cache", "/etc/alternatives"):  # Debian's awk links to alternatives
            command += ["--ro-bind-try", path, path]
        for name in ("bin", "sbin", "lib", "lib32", "lib64"):
            if os.path.islink(f"/{name}"):
                command += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
            elif os.path.isdir(f"/{name}"):
                command += ["--ro-bind", f"/{name}", f"/{name}"]
        # Mount /tmp before the visible paths: an interpreter may live under /tmp.
        command += ["--perms", "1777", "--size", str(self.disk), "--tmpfs", "/tmp"]
        for path in self.visible:
            for parent in reversed(Path(path).parents[:-1]):
                if parent != Path("/tmp"):  # bubblewrap would create them with mode 0700
                    command += ["--perms", "0755", "--dir", str(parent)]
            command += ["--ro-bind", path, path]
        # Mount no /proc: programs do not need it, and it would show the machine.
        command += ["--dev", "/dev"]
        command += ["--perms", "1777", "--size", str(self.disk), "--tmpfs", "/dev/shm"]
        command += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"]
        command += ["--info-fd", str(info_fd)]
        if seccomp_fd >= 0:
            command += ["--seccomp", str(seccomp_fd)]
        return [*command, "--", *python]

    def environment(self, home: str) -> dict[str, str]:
        """Return the complete environment of a program."""
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

    def settings(self, home: str, report: int | str, uid: int) -> dict[str, Any]:
        """Return the settings of a worker: its limits, filters and modules.

        `report` is the descriptor or the named pipe for its report.
        """
        parts = self.parts
        settings: dict[str, Any] = {
            "limits": self.limits,
            "report": report,
            "path": self.path,
            "preload": list(self.preload),
            "uid": uid,
            "names": _text("names.py"),
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
            settings["landlock"] = {"read": [*system, *self.visible], "write": [home, "/dev/null"]}
        if not self.boxed and "seccomp" in parts:
            settings["seccomp"] = seccomp.BARE.hex()
        return settings


@lru_cache(maxsize=1)
def bubblewrap() -> str:
    return shutil.which("bwrap") or ""


@lru_cache(maxsize=1)
def bubblewrap_version() -> str:
    command = [bubblewrap(), "--version"]
    words = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    return words[-1] if words else "0"


@lru_cache
def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _source() -> str:
    """Compile the worker once; the same interpreter runs it."""
    return marshal.dumps(compile(worker_text(), "worker.py", "exec", optimize=0)).hex()


def worker_text() -> str:
    """Return the program of the worker."""
    return _text("worker.py")


def _tasks_of_user() -> int:
    """Count the processes and threads of the user."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid == os.getuid():
                count += sum(1 for _ in (process / "task").iterdir())
    return count
