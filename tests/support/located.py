"""An environment that reports the process it runs in, and pays nothing."""

from __future__ import annotations

import os
import time
from typing import Any

from worlds import Echo

from gem_core.types import Episode

__all__ = ["LOCATED", "Located", "processes_of", "wait_for_exit"]

LOCATED = "test:Located-v0"


class Located(Echo):
    """Reports the id of its process; all returns are 0."""

    def on_step(self, action: str) -> Any:
        observation, _, ends, cut, info = super().on_step(action)
        return observation, 0.0, ends, cut, {**info, "pid": os.getpid()}


def processes_of(episodes: list[Episode]) -> set[int]:
    """Return the ids of the processes that the episodes of `Located` were played in."""
    return {turn.info["pid"] for episode in episodes for turn in episode.turns}


def wait_for_exit(processes: set[int], seconds: float = 20.0) -> bool:
    """Wait until none of the processes runs; return whether that is so."""
    deadline = time.monotonic() + seconds
    while any(os.path.exists(f"/proc/{pid}") for pid in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
