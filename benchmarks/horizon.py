"""Horizon of a run's next update: fixed, growing by `HorizonSchedule`, or gated by success.

A gate is the success that a stage must reach before the next one begins: `5,10,20@>0.4,0.6` goes
from 5 to 10 turns when the mean success of the last updates of the stage is 0.4 or more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from gem_core import HorizonSchedule
from gem_core.errors import ConfigError

__all__ = ["GatedHorizon", "parse_horizon"]


@dataclass(frozen=True)
class GatedHorizon:
    """Turns of each stage, and the success that ends each stage but the last."""

    rounds: tuple[int, ...]
    gates: tuple[float, ...]
    window: int = 3
    """Updates of a stage whose mean success is compared with its gate."""

    def __post_init__(self) -> None:
        if len(self.gates) != len(self.rounds) - 1 or min(self.rounds) < 1 or self.window < 1:
            raise ConfigError(
                "a gated horizon has one gate fewer than stages, and all numbers are positive; "
                f"got {self}"
            )

    def __call__(self, success: Sequence[float]) -> int:
        """Return the turns of the next update, from the success of all finished ones."""
        stage = began = 0
        for finished in range(1, len(success) + 1):
            if stage == len(self.gates) or finished - began < self.window:
                continue
            if fmean(success[finished - self.window : finished]) >= self.gates[stage]:
                stage, began = stage + 1, finished
        return self.rounds[stage]


def parse_horizon(text: str) -> Callable[[Sequence[float]], int | None]:
    """Return a function from the success of the finished updates to the turns of the next one.

    `text` is a `HorizonSchedule`, such as `5,10@5`, or a gated one, such as `5,10@>0.4`. If it is
    empty, the environment's own limit counts.
    """
    if "@>" not in text:
        schedule = HorizonSchedule.parse(text or None)
        return lambda success: schedule(len(success)) if schedule else None
    if not re.fullmatch(r"\d+(,\d+)*@>[0-9.]+(,[0-9.]+)*", text):
        raise ConfigError(f"{text!r} is not a gated horizon; write it as '5,10,20@>0.4,0.6'")
    rounds, _, gates = text.partition("@>")
    return GatedHorizon(tuple(map(int, rounds.split(","))), tuple(map(float, gates.split(","))))
