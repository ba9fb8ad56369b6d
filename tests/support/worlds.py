"""Small environments for the training tests of all adapters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gem_core import Env, register
from gem_core.env.registry import environments

__all__ = ["ECHO", "MOODY", "Echo", "Moody", "registered"]

ECHO = "test:Echo-v0"
MOODY = "test:Moody-v0"


class Echo(Env):
    """Rewards the byte sum of each action over one to three turns, so rewards differ by turn."""

    execution = "inline"
    action_example = "anything"

    def on_reset(self, options: Any) -> Any:
        self.turns = 1 + self.seed % 3
        return f"Say anything. Start {self.seed}.", {}

    def on_step(self, action: str) -> Any:
        ends, total = self.turn + 1 >= self.turns, sum(action.encode())
        return (
            f"You said {len(action)} characters.",
            (total % 7) / 7.0,
            ends,
            False,
            {"success": total % 2 == 0},
        )


class Moody(Echo):
    """Raises at its second turn if the seed is odd."""

    def on_reset(self, options: Any) -> Any:
        observation, info = super().on_reset(options)
        self.turns = 2
        return observation, info

    def on_step(self, action: str) -> Any:
        if self.seed % 2 and self.turn == 1:
            raise RuntimeError("in a bad mood")
        return super().on_step(action)


@contextmanager
def registered() -> Iterator[None]:
    """Register both by import path, which worker processes can import."""
    register(ECHO, "worlds:Echo", replace=True)
    register(MOODY, "worlds:Moody", replace=True)
    try:
        yield
    finally:
        environments.remove(ECHO)
        environments.remove(MOODY)
