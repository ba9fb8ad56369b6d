"""Schedule: how many turns an episode may have at a given step of training (ScalingInter-RL, AgentGym-RL).

A schedule is a pure function of the number of finished updates, so that a resumed run goes on where it would have been:
stage k = min(step // every, len(rounds) - 1), horizon = rounds[k], with step counted from 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gem_core.arguments import whole_number
from gem_core.errors import ConfigError

__all__ = ["HorizonSchedule"]


@dataclass(frozen=True, slots=True)
class HorizonSchedule:
    """`rounds[0]` turns for the first `every` updates, `rounds[1]` for the next, and the last from then on."""

    rounds: tuple[int, ...]
    """Turns per stage."""
    every: int = 100
    """Updates per stage; without meaning where there is one stage."""

    def __post_init__(self) -> None:
        if not self.rounds:
            raise ConfigError("a horizon schedule needs at least one number of turns; given: none")
        for turns in self.rounds:
            whole_number(f"each of the rounds {self.rounds!r} of a horizon schedule", turns, 1)
        whole_number("every, the updates per stage of a horizon schedule,", self.every, 1)

    def stage(self, step: int) -> int:
        """Which stage an update belongs to, both counted from 0."""
        if step < 0:
            raise ConfigError(f"a step is counted from 0 up; given: {step}")
        return min(step // self.every, len(self.rounds) - 1)

    def __call__(self, step: int) -> int:
        """The turns an episode may have after `step` finished updates."""
        return self.rounds[self.stage(step)]

    @classmethod
    def parse(
        cls, given: HorizonSchedule | int | str | Sequence[int] | Mapping[str, Any] | None
    ) -> HorizonSchedule | None:
        """From what a configuration holds: None, 10, [4, 7, 10], "4,7,10@80", or {"rounds": [4, 7, 10], "every": 80}."""
        if given is None or isinstance(given, HorizonSchedule):
            return given
        if isinstance(given, bool):
            raise ConfigError(
                f"a horizon schedule is a number, a list, 'r1,r2,r3@every' or a mapping; given: {given!r}"
            )
        if isinstance(given, int):
            return cls((given,))
        if isinstance(given, str):
            if not re.fullmatch(r"\s*\d+(\s*,\s*\d+)*\s*(@\s*\d+\s*)?", given):
                raise ConfigError(
                    f"{given!r} is no horizon schedule; write it as '10' or '4,7,10@80' (turns @ updates per stage)"
                )
            rounds, _, every = given.partition("@")
            return cls(tuple(int(r) for r in rounds.split(",")), int(every) if every else 100)
        if isinstance(given, Mapping):
            unknown = set(given) - {"rounds", "every"}
            if unknown or "rounds" not in given:
                raise ConfigError(
                    f"a horizon schedule takes 'rounds' and 'every'; given: {dict(given)!r}"
                )
            rounds = given["rounds"]
            return cls(
                (rounds,) if isinstance(rounds, int) else tuple(rounds), given.get("every", 100)
            )
        return cls(tuple(given))
