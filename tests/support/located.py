"""An environment that reports the process it runs in, and pays nothing."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray_start import start_ray
from worlds import Echo

from gem_core.types import Episode

__all__ = ["LOCATED", "Located", "local_ray", "processes_of", "wait_for_end", "wait_for_exit"]

LOCATED = "test:Located-v0"


class Located(Echo):
    """Reports the id of its process; all returns are 0."""

    def on_step(self, action: str) -> Any:
        observation, _, ends, cut, info = super().on_step(action)
        return observation, 0.0, ends, cut, {**info, "pid": os.getpid()}


@contextmanager
def local_ray(execution: str) -> Iterator[None]:
    """Run a small Ray instance inside the block if environments run on Ray hosts."""
    if execution != "ray":
        yield
        return
    import ray

    path = os.pathsep.join(folder for folder in sys.path if folder)
    # hosts import this module
    start_ray(num_cpus=2, runtime_env={"env_vars": {"PYTHONPATH": path}})
    try:
        yield
    finally:
        ray.shutdown()


def processes_of(episodes: list[Episode]) -> set[int]:
    """Return the ids of the processes that the episodes of `Located` were played in."""
    return {turn.info["pid"] for episode in episodes for turn in episode.turns}


def wait_for_exit(processes: set[int], seconds: float = 120.0) -> bool:
    """Wait until none of the processes runs; return whether that is so."""
    deadline = time.monotonic() + seconds
    while any(os.path.exists(f"/proc/{pid}") for pid in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def wait_for_end(programs: set[tuple[int, str]], seconds: float = 120.0) -> bool:
    """Wait until none of the programs runs, each with its process id; return whether that is so.

    Another program may have got a process id since.
    """

    def runs(pid: int, program: str) -> bool:
        try:
            return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0] == program
        except OSError:
            return False

    deadline = time.monotonic() + seconds
    while any(runs(pid, program) for pid, program in programs):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
