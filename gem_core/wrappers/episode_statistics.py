"""Episode statistics: the return and turns so far, in `info["episode"]` of every step."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from gem_core.env.base import Env
from gem_core.env.wrapper import Wrapper

__all__ = ["Statistics"]


class Statistics(Wrapper):
    """Add return and turns to `info`. `last` has those of the last episode, and its seconds.

    The seconds are not in `info`, because equal actions must give equal transcripts. `previous`
    adds the return and turns of the last episode to the `info` of a reset, as `previous_episode`.
    """

    def __init__(self, env: Env, previous: bool = False) -> None:
        super().__init__(env)
        self.previous = previous
        self.last: dict[str, Any] | None = None
        self.total, self.began = 0.0, 0.0

    def on_reset(self, options: Mapping[str, Any]) -> Any:
        observation, info = yield self.env.reset(seed=self._seed, options=options)
        self.total, self.began = 0.0, time.monotonic()
        if self.previous and self.last is not None:
            last = {name: self.last[name] for name in ("return", "turns")}
            info = {**info, "previous_episode": last}
        return observation, info

    def on_step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = yield self.env.step(action)
        self.total += reward
        episode = {"return": self.total, "turns": self.turn + 1}
        if terminated or truncated:
            self.last = {**episode, "seconds": time.monotonic() - self.began}
        return observation, reward, terminated, truncated, {**info, "episode": episode}
