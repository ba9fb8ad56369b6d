"""Horizon schedule: the maximum number of turns at each step of training (ScalingInter-RL).

It is a pure function of the number of finished updates, so a resumed run continues correctly:
stage k = min(step // every, len(rounds) - 1) and horizon = rounds[k], with step counted from 0.
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
    """`rounds[0]` turns for the first `every` updates, `rounds[1]` for the next, and so on."""

    rounds: tuple[int, ...]
    """Turns per stage."""
    every: int | None = None
    """Updates per stage; needed if there are several stages."""

    def __post_init__(self) -> None:
        if not self.rounds:
            raise ConfigError("a horizon schedule needs at least one number of turns, got none")
        for turns in self.rounds:
            whole_number(f"each of the rounds {self.rounds!r} of a horizon schedule", turns, 1)
        if self.every is not None:
            whole_number("every, the updates per stage of a horizon schedule,", self.every, 1)
        elif len(self.rounds) > 1:
            written = ",".join(map(str, self.rounds))
            raise ConfigError(f"horizon {written}: add the updates per stage, as in '{written}@80'")

    def stage(self, step: int) -> int:
        """Return the stage of an update, both counted from 0."""
        if step < 0:
            raise ConfigError(f"step must be counted from 0 up, got {step}")
        return min(step // (self.every or 1), len(self.rounds) - 1)

    def __call__(self, step: int) -> int:
        """Return the maximum number of turns after `step` finished updates."""
        return self.rounds[self.stage(step)]

    @classmethod
    def parse(
        cls, value: HorizonSchedule | int | str | Sequence[int] | Mapping[str, Any] | None
    ) -> HorizonSchedule | None:
        """Parse None, 10, "4,7,10@80" or {"rounds": [4, 7, 10], "every": 80}."""
        if value is None or isinstance(value, HorizonSchedule):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return cls((value,))
        if isinstance(value, str):
            if not re.fullmatch(r"\s*\d+(\s*,\s*\d+)*\s*(@\s*\d+\s*)?", value):
                raise ConfigError(
                    f"{value!r} is not a horizon schedule; "
                    "write it as '10' or '4,7,10@80' (turns @ updates per stage)"
                )
            rounds, _, every = value.partition("@")
            return cls(tuple(int(r) for r in rounds.split(",")), int(every) if every else None)
        if isinstance(value, Mapping):
            if set(value) - {"rounds", "every"} or "rounds" not in value:
                raise ConfigError(
                    f"a horizon schedule takes 'rounds' and 'every', got {dict(value)!r}"
                )
            rounds = value["rounds"]
            turns = tuple(rounds) if isinstance(rounds, (list, tuple)) else (rounds,)
            return cls(turns, value.get("every"))
        if isinstance(value, (list, tuple)):
            return cls(tuple(value))
        raise ConfigError(f"a horizon is a number, '4,7,10@80' or a mapping, got {value!r}")
