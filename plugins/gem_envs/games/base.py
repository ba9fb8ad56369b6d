"""Game: the base class of the small text games, which need microseconds per step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal

from gem_core.env.action_format import FORMAT_ERROR
from gem_core.env.base import Env, StepResult
from gem_envs.games.experts import expert_for

__all__ = ["SUCCESS", "Game"]

SUCCESS = 1.0


class Game(Env):
    """A game with a turn limit.

    An action that cannot be parsed ends the episode; an illegal action only costs the turn.
    """

    execution: ClassVar[Literal["inline", "thread", "process"]] = "inline"
    max_turns: int

    @property
    def expert(self) -> Callable[[], Iterator[str]] | None:
        """The scripted player from `gem_envs.games.experts` that wins the game."""
        return expert_for(self)

    def carry_on(self, feedback: str, reward: float = 0.0, **info: Any) -> StepResult:
        """Continue the episode, or truncate it at the last turn."""
        if self._turn + 1 < self.max_turns:
            return feedback, reward, False, False, info
        return self.out_of_turns(feedback, reward, **info)

    def out_of_turns(self, feedback: str, reward: float, **info: Any) -> StepResult:
        """Truncate the episode at the turn limit, with the feedback on the last action."""
        return (
            f"{feedback}\nThat was the last of {self.max_turns} turns.",
            reward,
            False,
            True,
            {"success": False, **info},
        )

    def won(self, feedback: str, reward: float = SUCCESS, **info: Any) -> StepResult:
        """Terminate the episode with success."""
        return feedback, reward, True, False, {"success": True, **info}

    def lost(self, feedback: str, reward: float = 0.0, **info: Any) -> StepResult:
        """Terminate the episode without success."""
        return feedback, reward, True, False, {"success": False, **info}

    def unreadable(self, action: str, expected: str) -> StepResult:
        """Terminate the episode because the action has the wrong format."""
        shown = action if len(action) <= 40 else action[:37] + "..."
        return (
            f"{shown!r} is not {expected}.",
            FORMAT_ERROR,
            True,
            False,
            {"success": False, "format_error": True},
        )
