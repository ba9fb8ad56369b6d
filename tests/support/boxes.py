"""Ends the box of a session from outside, as a machine without memory does."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from gem_tools.session.session import Session

__all__ = ["children", "descendants", "kill_box"]


def kill_box(session: Session) -> None:
    """Kill bubblewrap, and wait until everything in the box has ended."""
    session.run("true")  # a box that is just starting would not end with bubblewrap
    box = children(session._process.pid)[-1]
    processes = descendants(box)
    os.kill(box, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in processes):
        assert time.monotonic() < deadline, "processes are left"
        time.sleep(0.01)


def descendants(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    return [pid, *(below for child in children(pid) for below in descendants(child))]


def children(pid: int) -> list[int]:
    """Return the children of all threads of a process; none if it has ended."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # a thread may end meanwhile
                found += map(int, (task / "children").read_text().split())
    return found
