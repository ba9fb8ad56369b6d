r"""Unbiased pass@k and pass^k, and bootstrap intervals that resample seeds.

For one seed with n samples and c successes:

    pass@k = 1 - C(n-c, k) / C(n, k)      at least one of k samples succeeds
    pass^k = C(c, k) / C(n, k)            all k samples succeed

Both are means over all ways to draw k of the n samples, so they are unbiased; scores average them
over seeds. The 95% interval is the percentile bootstrap over seeds, since samples of one seed are
not independent. If all seeds agree, the interval has zero width.
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
    """Mean over seeds with its 95% interval, which needs at least two seeds."""

    value: float
    low: float | None
    high: float | None
    seeds: int

    def as_json(self) -> dict[str, float | int | None]:
        """Return JSON data."""
        return {"value": self.value, "low": self.low, "high": self.high, "seeds": self.seeds}


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that at least one of k samples, drawn from n with c successes, succeeds."""
    _check(n, c, k)
    return 1.0 - comb(n - c, k) / comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Probability that all k samples, drawn from n with c successes, succeed."""
    _check(n, c, k)
    return comb(c, k) / comb(n, k)


def mean_by_seed(values: Sequence[float]) -> Estimate | None:
    """Estimate the mean of one value per seed; None without values.

    The bootstrap is seeded: equal values give an equal interval.
    """
    if not values:
        return None
    count, mean = len(values), fmean(values)
    if count == 1:
        return Estimate(mean, None, None, 1)
    rng = random.Random(f"bootstrap of {count} seeds")
    means = sorted(sum(rng.choices(values, k=count)) / count for _ in range(RESAMPLES))
    tail = (1 - LEVEL) / 2
    return Estimate(mean, _quantile(means, tail), _quantile(means, 1 - tail), count)


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Interpolate linearly between the two nearest values."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _check(n: int, c: int, k: int) -> None:
    if not (0 <= c <= n and 1 <= k <= n):
        raise ConfigError(
            f"pass@k and pass^k need 0 <= c <= n and 1 <= k <= n; got n={n}, c={c}, k={k}"
        )
