"""Worlds: further environments for the RL2 tests."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, ClassVar

from worlds import Echo

__all__ = ["FICKLE", "SLOW", "Breaking", "Fickle", "Slow", "Where"]

SLOW = "test:Slow-v0"
FICKLE = "test:Fickle-v0"


class Slow(Echo):
    """Environment whose step with seed 0 waits until eight other episodes have ended."""

    execution = "thread"
    ended: ClassVar[threading.Semaphore]

    def on_step(self, action: str) -> Any:
        result = super().on_step(action)
        if self.seed == 0 and not all(self.ended.acquire(timeout=60) for _ in range(8)):
            raise TimeoutError("the other episodes wait for this one")
        if result[2]:
            self.ended.release()
        return result


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
