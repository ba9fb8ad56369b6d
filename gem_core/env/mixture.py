"""Mixture: several environments as one. The seed of an episode draws one of them by weight."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from gem_core.env.base import Env, Offload
from gem_core.env.registry import Execution, make
from gem_core.env.wrapper import Wrapper
from gem_core.errors import ConfigError, OptionError

__all__ = ["Mixture"]


class Mixture(Wrapper):
    """A wrapper around the component drawn by the seed; `info["env_id"]` of the reset names it."""

    spec: Any = None

    def __init__(
        self,
        parts: Sequence[tuple[str, float]],
        wrappers: Sequence[Any] = (),
        execution: Execution = "here",
    ) -> None:
        if not parts:
            raise ConfigError("a mixture needs at least one environment")
        self.ids = [id for id, _ in parts]
        self.weights = [weight for _, weight in parts]
        self.members: dict[str, Env] = {
            id: make(id, wrappers=wrappers, execution=execution) for id in self.ids
        }
        super().__init__(self.members[self.ids[0]])

    def choose(self, seed: int) -> str:
        """Return the component for a seed, drawn from a generator separate from the component's."""
        return random.Random(f"{seed}/mixture").choices(self.ids, self.weights)[0]

    def on_reset(self, options: Mapping[str, Any]) -> Any:
        chosen = self.choose(self._seed)
        self.env = self.members[chosen]
        unknown = sorted(set(options) - self.env.accepted_options)
        if unknown:
            raise OptionError(
                f"seed {self._seed} drew {chosen} from the mixture, "
                f"which does not know the option(s) {unknown}"
            )
        observation, info = yield self.env.reset(seed=self._seed, options=options)
        return observation, {"env_id": chosen, **info}

    def on_close(self) -> Any:
        for member in self.members.values():
            yield member.close()

    @property
    def is_async(self) -> bool:
        return any(member.is_async for member in self.members.values())

    @property
    def accepted_options(self) -> frozenset[str]:
        return frozenset().union(*(member.accepted_options for member in self.members.values()))

    def run_on(self, offload: Offload | None) -> None:
        for member in self.members.values():
            member.run_on(offload)

    def spawn(self) -> Env:
        return Env.spawn(self)

    def __repr__(self) -> str:
        return f"<Mixture{list(self.members.values())!r}>"
