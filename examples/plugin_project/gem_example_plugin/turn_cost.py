"""TurnCost wrapper: subtract a small cost from every turn's reward to favour short episodes."""

from __future__ import annotations

from typing import Any

from gem_core import Env, Wrapper
from gem_core.errors import ConfigError

__all__ = ["TurnCost"]


class TurnCost(Wrapper):
    """Wrap a sync or async environment: `yield` awaits the inner step if necessary."""

    def __init__(self, env: Env, cost: float = 0.05) -> None:
        super().__init__(env)
        if not cost >= 0:
            raise ConfigError(f"cost must be 0 or more; got {cost!r}")
        self.cost = float(cost)

    def on_step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = yield self.env.step(action)
        return observation, reward - self.cost, terminated, truncated, info
