"""Worlds: further environments for the RL2 tests."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, ClassVar

from worlds import Echo

__all__ = ["FICKLE", "SLOW", "Breaking", "Fickle", "Slow", "Where"]

SLOW = "test:Slow-v0"
FICKLE = "test:Fickle-v0"


class Slow(Echo):
    """Environment with steps of six seconds if the seed is 0."""

    execution = "thread"

    def on_step(self, action: str) -> Any:
        time.sleep(6.0 if self.seed == 0 else 0.0)
        return super().on_step(action)


class Fickle(Echo):
    """Environment with reward 1 in the first episode of an even seed, and 0 in all others.

    All seeds have the same observations.
    """

    played: ClassVar[set[int]] = set()

    def on_reset(self, options: Any) -> Any:
        return "Say anything.", {}

    def on_step(self, action: str) -> Any:
        rewarded = self.seed % 2 == 0 and self.seed not in self.played
        self.played.add(self.seed)
        return "", float(rewarded), True, False, {}


class Where(Echo):
    """Environment that adds its process id, program and parent to the info of every step."""

    def on_step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().on_step(action)
        program = Path("/proc/self/cmdline").read_bytes().decode().split("\0")[0]
        parent = Path(f"/proc/{os.getppid()}/comm").read_text().strip()
        info = {**info, "pid": os.getpid(), "program": program, "parent": parent}
        return observation, reward, terminated, truncated, info


class Breaking(Echo):
    """Environment that raises after 17 resets in one process: the trial and two batches of 8."""

    resets: ClassVar[int] = 0

    def on_reset(self, options: Any) -> Any:
        Breaking.resets += 1
        if Breaking.resets > 17:
            raise RuntimeError("the disk is full")
        return super().on_reset(options)
