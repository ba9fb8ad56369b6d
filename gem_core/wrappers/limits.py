"""Limit wrappers: truncate an episode after a number of turns or action tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gem_core.arguments import whole_number
from gem_core.env.base import Env
from gem_core.env.wrapper import Wrapper

__all__ = ["TokenLimit", "TurnLimit"]


class TurnLimit(Wrapper):
    """Truncate after `max_turns` actions, keeping the last observation and reward."""

    def __init__(self, env: Env, max_turns: int) -> None:
        super().__init__(env)
        self.max_turns = whole_number("max_turns", max_turns, 1)

    def on_step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = yield self.env.step(action)
        if self.turn + 1 >= self.max_turns and not terminated:
            truncated = True
            info = {**info, "success": info.get("success", False)}
        return observation, reward, terminated, truncated, info


class TokenLimit(Wrapper):
    """Truncate at `max_tokens` action tokens per episode, counted by `count` (default: words)."""

    def __init__(
        self, env: Env, max_tokens: int, count: Callable[[str], int] | None = None
    ) -> None:
        super().__init__(env)
        self.max_tokens = whole_number("max_tokens", max_tokens, 1)
        self.count = count

    def on_reset(self, options: Mapping[str, Any]) -> Any:
        self.tokens = 0
        return (yield self.env.reset(seed=self._seed, options=options))

    def on_step(self, action: str) -> Any:
        self.tokens += self.count(action) if self.count else len(action.split())
        observation, reward, terminated, truncated, info = yield self.env.step(action)
        info = {**info, "action_tokens": self.tokens}
        if self.tokens >= self.max_tokens and not terminated:
            truncated = True
            info.setdefault("success", False)
        return observation, reward, terminated, truncated, info
