"""Worlds of the RL2 tests, beyond those of all adapters."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from worlds import Echo

__all__ = ["FICKLE", "SLOW", "Fickle", "Slow"]

SLOW = "test:Slow-v0"
FICKLE = "test:Fickle-v0"


class Slow(Echo):
    """Takes two seconds for a step if the seed is 0."""

    execution = "thread"

    def on_step(self, action: str) -> Any:
        time.sleep(2.0 if self.seed == 0 else 0.0)
        return super().on_step(action)


class Fickle(Echo):
    """Shows the same text for all seeds; pays 1 to the first episode of an even seed, and 0 to all others."""

    paid: ClassVar[set[int]] = set()

    def on_reset(self, options: Any) -> Any:
        return "Say anything.", {}

    def on_step(self, action: str) -> Any:
        first = self.seed % 2 == 0 and self.seed not in self.paid
        self.paid.add(self.seed)
        return "", float(first), True, False, {}
