"""Game: the base of the small text games. Pure Python, microseconds a step, a deep copy is the whole state."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from gem_core.env import Env, StepResult
from gem_core.errors import ConfigError

__all__ = ["FORMAT_ERROR", "SUCCESS", "Game", "whole_number"]

SUCCESS = 1.0
FORMAT_ERROR = -0.1
"""Paid for an action the game cannot read; it also ends the episode, so that nonsense is never worth repeating."""


class Game(Env):
    """A game with a turn limit. An action that cannot be read ends it; one that is not allowed only costs the turn."""

    execution: ClassVar[Literal["inline", "thread", "process"]] = "inline"
    snapshots: ClassVar[Literal["copy", "replay"]] = "copy"
    max_turns: int

    def carry_on(self, feedback: str, reward: float = 0.0, **info: Any) -> StepResult:
        """Not over yet, unless this was the last turn."""
        if self.turn + 1 >= self.max_turns:
            return self.out_of_turns(feedback, reward, **info)
        return feedback, reward, False, False, info

    def out_of_turns(self, feedback: str, reward: float, **info: Any) -> StepResult:
        """The turn limit cut the game; the feedback on the last action is kept."""
        return f"{feedback}\nThat was the last of {self.max_turns} turns.", reward, False, True, {"success": False, **info}

    def won(self, feedback: str, reward: float = SUCCESS, **info: Any) -> StepResult:
        """The task is solved."""
        return feedback, reward, True, False, {"success": True, **info}

    def lost(self, feedback: str, reward: float = 0.0, **info: Any) -> StepResult:
        """The game reached an end that is no success."""
        return feedback, reward, True, False, {"success": False, **info}

    def unreadable(self, action: str, expected: str) -> StepResult:
        """The action is not of the form the game takes."""
        shown = action if len(action) <= 40 else action[:37] + "..."
        return f"{shown!r} is not {expected}.", FORMAT_ERROR, True, False, {"success": False, "format_error": True}


def whole_number(name: str, value: Any, at_least: int, at_most: int | None = None) -> int:
    """A parameter that must be a whole number in a range, or an error that says so."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least or (at_most is not None and value > at_most):
        allowed = f"from {at_least} to {at_most}" if at_most is not None else f"from {at_least} up"
        raise ConfigError(f"{name} must be a whole number {allowed}; given: {value!r}")
    return value
