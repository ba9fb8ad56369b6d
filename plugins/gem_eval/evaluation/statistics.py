r"""Statistics: pass@k and pass^k without bias, and intervals that know that samples of one seed are no independent evidence.

A seed is one start, played n times with c successes:

    pass@k = 1 - C(n-c, k) / C(n, k)      at least one of k samples solves it
    pass^k = C(c, k) / C(n, k)            all of k samples solve it

Both are means over all ways to draw k of the n samples, so they are unbiased; the mean over seeds follows. The 95% interval is
the percentile bootstrap over seeds: seeds are drawn again with their samples left together. It cannot see what no seed showed:
where all seeds agree it has no width.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean

from gem_core.errors import ConfigError

__all__ = ["Estimate", "mean_by_seed", "pass_at_k", "pass_hat_k"]

RESAMPLES = 2000
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds, with its 95% interval where there are seeds enough for one."""

    value: float
    low: float | None
    high: float | None
    seeds: int

    def as_json(self) -> dict[str, float | int | None]:
        """Plain data."""
        return {"value": self.value, "low": self.low, "high": self.high, "seeds": self.seeds}


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that at least one of k samples, drawn from n with c successes, is a success."""
    _check(n, c, k)
    return 1.0 - comb(n - c, k) / comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """The chance that all of k samples, drawn from n with c successes, are successes."""
    _check(n, c, k)
    return comb(c, k) / comb(n, k)


def mean_by_seed(values: Sequence[float]) -> Estimate | None:
    """The mean of one number per seed, with its interval; None where there is no seed. Equal numbers give an equal interval."""
    if not values:
        return None
    count, mean = len(values), fmean(values)
    if count == 1:
        return Estimate(mean, None, None, 1)
    chances = random.Random(f"bootstrap of {count} seeds")
    means = sorted(sum(chances.choices(values, k=count)) / count for _ in range(RESAMPLES))
    tail = (1 - LEVEL) / 2
    return Estimate(mean, _quantile(means, tail), _quantile(means, 1 - tail), count)


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Between the two values nearest to that share, in proportion."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _check(n: int, c: int, k: int) -> None:
    if not (0 <= c <= n and 1 <= k <= n):
        raise ConfigError(
            f"pass@k and pass^k need 0 <= c <= n and 1 <= k <= n; given: n={n}, c={c}, k={k}"
        )
