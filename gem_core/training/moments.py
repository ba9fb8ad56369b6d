"""Moments: count, mean and variance of numbers, merged across ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["EPSILON", "NOISE", "Gather", "Moments", "merged"]

EPSILON = 1e-8
NOISE = 1e-6

Gather = Callable[[Any], "list[Any]"]
"""Collects a picklable object from every rank in order, like `accelerate`'s `gather_object`."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean and sum of squared deviations (M2) of one rank's part of a batch.

    Numbers are in units of 2**unit, a power of two at or above the largest of them. Scaling by a
    power of two is exact and keeps squares finite for rewards of any size.
    """

    count: float
    mean: float
    m2: float
    unit: int
    largest: float
    """The largest |r| or |G|, in units of 2**unit."""

    @classmethod
    def of(
        cls,
        values: Sequence[float],
        weights: Sequence[float] | None = None,
        seen: Iterable[float] = (),
    ) -> Moments:
        """Compute the moments of weighted values; `seen` only counts for `largest`."""
        largest = max((abs(v) for v in (*values, *seen)), default=0.0)
        if not all(map(math.isfinite, values)):  # the sum of inf and -inf raises ValueError
            return cls(float(len(values)), math.nan, math.nan, 0, math.nan)
        unit = max(math.frexp(largest)[1], -960) if largest else 0
        scaled = [math.ldexp(v, -unit) for v in values]
        counts = [1.0] * len(scaled) if weights is None else [float(w) for w in weights]
        count = math.fsum(counts)
        if not count:
            return cls(0.0, 0.0, 0.0, unit, math.ldexp(largest, -unit))
        mean = math.fsum(w * v for w, v in zip(counts, scaled)) / count
        m2 = math.fsum(w * (v - mean) ** 2 for w, v in zip(counts, scaled))
        return cls(count, mean, m2, unit, math.ldexp(largest, -unit))

    def merge(self, other: Moments) -> Moments:
        """Return the moments of both parts together (Chan et al. 1979)."""
        unit = max(self.unit, other.unit)
        a, b = self._rescaled(unit), other._rescaled(unit)
        largest = max(a.largest, b.largest)
        count = a.count + b.count
        if not count:
            return Moments(0.0, 0.0, 0.0, a.unit, largest)
        delta = b.mean - a.mean
        mean = a.mean + delta * (b.count / count)
        m2 = a.m2 + b.m2 + delta * delta * (a.count * b.count / count)
        return Moments(count, mean, m2, a.unit, largest)

    @property
    def std(self) -> float:
        """The population standard deviation, in units of 2**unit."""
        return math.sqrt(self.m2 / self.count) if self.count else 0.0

    def centre(self, value: float) -> float:
        """Return value − mean; 0 if the std is rounding noise."""
        if self.std <= NOISE * self.largest:
            return 0.0
        return math.ldexp(math.ldexp(value, -self.unit) - self.mean, self.unit)

    def normalise(self, value: float) -> float:
        """Return (value − mean) / (std + ε); 0 if the std is rounding noise or count is 1."""
        std = self.std
        if self.count <= 1 or std <= NOISE * self.largest:
            return 0.0
        return (math.ldexp(value, -self.unit) - self.mean) / (std + math.ldexp(EPSILON, -self.unit))

    def _rescaled(self, unit: int) -> Moments:
        by = self.unit - unit
        return Moments(
            self.count,
            math.ldexp(self.mean, by),
            math.ldexp(self.m2, 2 * by),
            unit,
            math.ldexp(self.largest, by),
        )


def merged(parts: Mapping[Hashable, Moments], gather: Gather | None) -> dict[Hashable, Moments]:
    """Merge the moments under each key across all ranks."""
    total: dict[Hashable, Moments] = {}
    for rank in gather(dict(parts)) if gather is not None else [parts]:
        for key, moments in rank.items():
            total[key] = total[key].merge(moments) if key in total else moments
    return total
