"""Compare: two evaluations, start by start. The same seed is as hard for both, so the difference per seed has less noise than
the difference of two means; its interval is the bootstrap over the seeds that both have."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from gem_core.errors import ConfigError
from gem_core.types import Episode
from gem_eval.evaluation.statistics import Estimate, mean_by_seed

__all__ = ["Difference", "compare"]

METRICS: dict[str, Callable[[Episode], float | None]] = {
    "return": lambda e: e.total_reward,
    "success": lambda e: float(bool(e.success)),
    "turns": lambda e: float(len(e.turns)),
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One metric on one environment: the mean of each side over the seeds both have, and second minus first."""

    env_id: str
    metric: str
    first: float
    second: float
    difference: Estimate
    unpaired: int
    """Seeds that only one side has, or that are failed on the other."""

    @property
    def verdict(self) -> str:
        """`better`, `worse`, or `same` where the interval holds 0; `-` where one seed is all there is."""
        low, high = self.difference.low, self.difference.high
        if low is None or high is None:
            return "-"
        return "better" if low > 0 else "worse" if high < 0 else "same"

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        names = ("env_id", "metric", "first", "second", "unpaired", "verdict")
        return {
            **{name: getattr(self, name) for name in names},
            "difference": self.difference.as_json(),
        }


def compare(
    first: Sequence[Episode], second: Sequence[Episode], metric: str = "success"
) -> list[Difference]:
    """A difference for each environment that both have with seeds in common, in the order of the first."""
    if metric not in METRICS:
        raise ConfigError(f"metric must be one of {', '.join(METRICS)}; given: {metric!r}")
    sides = [_by_start([e for e in side if not e.failed]) for side in (first, second)]
    found: list[Difference] = []
    for env_id in dict.fromkeys(e.env_id for e in first):
        starts = [
            {start: episodes for start, episodes in side.items() if start[0] == env_id}
            for side in sides
        ]
        if metric == "success" and not any(
            e.success is not None for side in starts for es in side.values() for e in es
        ):
            continue
        paired = [start for start in starts[0] if start in starts[1]]
        means = [
            [fmean(METRICS[metric](e) or 0.0 for e in side[start]) for start in paired]
            for side in starts
        ]
        change = mean_by_seed([b - a for a, b in zip(*means)])
        if change is not None:
            unpaired = len(starts[0]) + len(starts[1]) - 2 * len(paired)
            found.append(
                Difference(env_id, metric, fmean(means[0]), fmean(means[1]), change, unpaired)
            )
    return found


def _by_start(episodes: Sequence[Episode]) -> dict[tuple[Hashable, ...], list[Episode]]:
    """Episodes by where they began; which wrappers stood around the environment may be the very thing that is compared."""
    found: dict[tuple[Hashable, ...], list[Episode]] = {}
    for episode in episodes:
        env_id, _, seed, options = episode.group
        found.setdefault((env_id, seed, options), []).append(episode)
    return found
