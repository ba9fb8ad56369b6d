"""Game: the base class of the small text games, which need microseconds per step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, ClassVar, Literal, ParamSpec

from gem_core.env.action_format import FORMAT_ERROR
from gem_core.env.base import Env, StepResult
from gem_core.errors import ConfigError
from gem_envs.games.experts import expert_for

__all__ = ["SUCCESS", "Game", "draws"]

SUCCESS = 1.0

_P = ParamSpec("_P")


def draws(*names: str) -> Callable[[Callable[_P, None]], Callable[_P, None]]:
    """Name the parameters of `__init__` that `randomize` draws; setting one raises ConfigError."""

    def decorate(init: Callable[_P, None]) -> Callable[_P, None]:
        signature = inspect.signature(init)

        @wraps(init)
        def checked(*args: _P.args, **kwargs: _P.kwargs) -> None:
            arguments = signature.bind(*args, **kwargs).arguments
            ignored = ", ".join(name for name in names if name in arguments)
            if ignored and arguments.get("randomize"):
                raise ConfigError(
                    f"{ignored} cannot be set together with randomize, which draws "
                    f"{', '.join(names)} at each reset; use the id that ends in -random "
                    f"without {ignored}, or another id without randomize"
                )
            init(*args, **kwargs)

        return checked

    return decorate


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
