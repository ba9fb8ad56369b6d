"""Memory cgroups: a limit of the kernel for all memory of a call, in every process and in files.

`RLIMIT_AS` limits the address space of one process. gem also uses memory cgroups where it may
create them: as root outside of most containers, and in the sessions of users under systemd. Groups
are reused, because a removed group stays in the kernel until the files it has read leave the cache.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["MemoryGroups", "join", "memory_groups"]

_PREFIX = "gem-sandbox-"
_SECONDS_TO_REMOVE = 1.0
_JOIN = 'echo $$ > "$0" && exec "$@"'
_groups: dict[int, MemoryGroups | None] = {}
"""The groups of this process, by its id; None if it may not create any."""
_making = threading.Lock()


class MemoryGroups:
    """The memory cgroups of this process, below a folder of the kernel's. Thread-safe."""

    def __init__(self, parent: Path) -> None:
        self._parent = parent
        self._lock = threading.Lock()
        self._groups: list[Path] = []
        self._taken: set[Path] = set()

    def take(self, size: int) -> Path:
        """Return an empty group with a limit in bytes; `give` it back after use."""
        with self._lock:
            free = (group for group in self._groups if group not in self._taken and _empty(group))
            group = next(free, None)
            if group is None:
                group = self._parent / f"{_PREFIX}{os.getpid()}-{len(self._groups)}"
                group.mkdir()
                self._groups.append(group)
            _limit(group, size)
            self._taken.add(group)
        return group

    def give(self, group: Path) -> None:
        """Take a group back; it is used again once its processes are gone."""
        self._taken.discard(group)

    def remove(self) -> None:
        """Remove the groups, as soon as their processes are gone."""
        deadline = time.monotonic() + _SECONDS_TO_REMOVE
        while self._groups and time.monotonic() < deadline:
            for group in list(self._groups):
                with contextlib.suppress(OSError):
                    group.rmdir()
                    self._groups.remove(group)
            time.sleep(0.01)

    def remove_abandoned(self) -> None:
        """Remove the groups of processes that ended without removing them."""
        for group in self._parent.glob(f"{_PREFIX}*"):
            pid = re.match(rf"{_PREFIX}(\d+)-", group.name)
            if pid and not os.path.exists(f"/proc/{pid[1]}"):
                with contextlib.suppress(OSError):
                    group.rmdir()


def join(group: Path, command: list[str]) -> list[str]:
    """Return a command that runs another one in a group."""
    return ["/bin/sh", "-c", _JOIN, str(group / "cgroup.procs"), *command]


def memory_groups() -> MemoryGroups | None:
    """Return the groups of this process, or None if it may not create any."""
    with _making:
        if os.getpid() not in _groups:  # a forked process has its own
            _groups[os.getpid()] = _usable_groups()
        return _groups[os.getpid()]


def _usable_groups() -> MemoryGroups | None:
    """Try to start a process in a new group, in each place where that may be allowed."""
    if sys.platform != "linux":
        return None
    for parent in _parents():
        groups = MemoryGroups(parent)
        try:
            group = groups.take(64 << 20)
            subprocess.run(join(group, ["true"]), capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            groups.remove()
            continue
        groups.give(group)
        groups.remove_abandoned()
        return groups
    return None


@atexit.register
def _remove_groups() -> None:
    groups = _groups.get(os.getpid())
    if groups is not None:
        groups.remove()


def _parents() -> Iterator[Path]:
    """Yield folders that may allow memory groups: that of this process, and those above it."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        for mount in _mounts(controllers):
            own = Path(os.path.normpath(f"{mount}/{path}"))
            for parent in (own, *own.parents):
                if parent.is_dir() and (parent == mount or mount in parent.parents):
                    yield parent


def _mounts(controller: str) -> list[Path]:
    """Return where the hierarchy of a controller is mounted, or that of version 2 for ""."""
    mounts = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if (kind == "cgroup2") if not controller else controller in options.split(","):
            mounts.append(Path(before.split()[4]))
    return mounts


def _empty(group: Path) -> bool:
    try:
        return not (group / "cgroup.procs").read_bytes()
    except OSError:
        return False


def _limit(group: Path, size: int) -> None:
    """Limit the memory of a group, with version 2 or 1 of the interface; allow no swap."""
    if (group / "memory.limit_in_bytes").exists():
        (group / "memory.limit_in_bytes").write_text(str(size))
        (group / "memory.swappiness").write_text("0")
        return
    (group / "memory.max").write_text(str(size))  # fails where the parent does not pass it on
    with contextlib.suppress(OSError):  # a kernel without swap
        (group / "memory.swap.max").write_text("0")
    with contextlib.suppress(OSError):  # before Linux 4.19
        (group / "memory.oom.group").write_text("1")
