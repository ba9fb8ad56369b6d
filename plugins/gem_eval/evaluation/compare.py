"""Paired comparison of two evaluations.

A seed is equally hard for both sides, so the difference per seed has less noise than the
difference of two means. Its interval is the bootstrap over the seeds that both sides have.
"""

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
    """Difference (second minus first) of one metric on one environment, over the shared seeds."""

    env_id: str
    metric: str
    first: float
    second: float
    difference: Estimate
    unpaired: int
    """Seeds that only one side has, or whose episodes failed on the other side."""

    @property
    def verdict(self) -> str:
        """`better`, `worse`, `not significantly different`, or `-` with a single seed.

        An interval that contains 0 does not show that both are equal.
        """
        low, high = self.difference.low, self.difference.high
        if low is None or high is None:
            return "-"
        return "better" if low > 0 else "worse" if high < 0 else "not significantly different"

    def as_json(self) -> dict[str, Any]:
        """Return JSON data."""
        names = ("env_id", "metric", "first", "second", "unpaired", "verdict")
        return {
            **{name: getattr(self, name) for name in names},
            "difference": self.difference.as_json(),
        }


def compare(
    first: Sequence[Episode], second: Sequence[Episode], metric: str = "success"
) -> list[Difference]:
    """Compare the environments that share seeds, in the order of the first evaluation."""
    if metric not in METRICS:
        raise ConfigError(f"metric must be one of {', '.join(METRICS)}; got {metric!r}")
    sides = [_by_seed([e for e in side if not e.failed]) for side in (first, second)]
    differences: list[Difference] = []
    for env_id in dict.fromkeys(e.env_id for e in first):
        by_seed = [
            {seed: episodes for seed, episodes in side.items() if seed[0] == env_id}
            for side in sides
        ]
        if metric == "success" and not any(
            e.success is not None for side in by_seed for es in side.values() for e in es
        ):
            continue
        paired = [seed for seed in by_seed[0] if seed in by_seed[1]]
        means = [
            [fmean(METRICS[metric](e) or 0.0 for e in side[seed]) for seed in paired]
            for side in by_seed
        ]
        change = mean_by_seed([b - a for a, b in zip(*means)])
        if change is not None:
            unpaired = len(by_seed[0]) + len(by_seed[1]) - 2 * len(paired)
            differences.append(
                Difference(env_id, metric, fmean(means[0]), fmean(means[1]), change, unpaired)
            )
    return differences


def _by_seed(episodes: Sequence[Episode]) -> dict[tuple[Hashable, ...], list[Episode]]:
    """Group episodes by environment, seed and options.

    Wrappers are not part of the key: a comparison may be about the wrappers.
    """
    groups: dict[tuple[Hashable, ...], list[Episode]] = {}
    for episode in episodes:
        env_id, _, seed, options = episode.group
        groups.setdefault((env_id, seed, options), []).append(episode)
    return groups
