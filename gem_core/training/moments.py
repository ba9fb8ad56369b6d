"""Moments: count, mean and spread of numbers, merged over ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["EPSILON", "NOISE", "Gather", "Moments", "merged"]

EPSILON = 1e-8
NOISE = 1e-6

Gather = Callable[[Any], "list[Any]"]
"""Collects one picklable object from every rank, in rank order, as `accelerate.utils.gather_object([x])` does."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean and sum of squared deviations of a batch part; merged over ranks without loss of precision.

    Numbers are kept in units of 2**unit, a power of two at or above the largest of them, which changes no digit and keeps
    squares finite for rewards of any size.
    """

    count: float
    mean: float
    m2: float
    unit: int
    largest: float
    """The largest |r| or |G| that went in, in units of 2**unit."""

    @classmethod
    def of(
        cls,
        values: Sequence[float],
        weights: Sequence[float] | None = None,
        seen: Iterable[float] = (),
    ) -> Moments:
        """Of values, each counted `weights` times; `seen` are further numbers that set the scale, such as rewards."""
        largest = max((abs(v) for v in (*values, *seen)), default=0.0)
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
        """Of both parts together (Chan et al. 1979)."""
        a, b = self._in(max(self.unit, other.unit)), other._in(max(self.unit, other.unit))
        largest = max(a.largest, b.largest)
        count = a.count + b.count
        if not count:
            return Moments(0.0, 0.0, 0.0, a.unit, largest)
        apart = b.mean - a.mean
        mean = a.mean + apart * (b.count / count)
        m2 = a.m2 + b.m2 + apart * apart * (a.count * b.count / count)
        return Moments(count, mean, m2, a.unit, largest)

    @property
    def std(self) -> float:
        """The population's standard deviation, in units of 2**unit."""
        return math.sqrt(self.m2 / self.count) if self.count else 0.0

    def centre(self, value: float) -> float:
        """value − mean, 0 where the spread is nothing but rounding noise."""
        if self.std <= NOISE * self.largest:
            return 0.0
        return math.ldexp(math.ldexp(value, -self.unit) - self.mean, self.unit)

    def normalise(self, value: float) -> float:
        """(value − mean) / (std + ε), 0 where the spread is nothing but rounding noise or there is one value only."""
        std = self.std
        if self.count <= 1 or std <= NOISE * self.largest:
            return 0.0
        return (math.ldexp(value, -self.unit) - self.mean) / (std + math.ldexp(EPSILON, -self.unit))

    def _in(self, unit: int) -> Moments:
        by = self.unit - unit
        return Moments(
            self.count,
            math.ldexp(self.mean, by),
            math.ldexp(self.m2, 2 * by),
            unit,
            math.ldexp(self.largest, by),
        )


def merged(parts: Mapping[Hashable, Moments], gather: Gather | None) -> dict[Hashable, Moments]:
    """The moments under each key, over all ranks."""
    total: dict[Hashable, Moments] = {}
    for rank in gather(dict(parts)) if gather is not None else [parts]:
        for key, moments in rank.items():
            total[key] = total[key].merge(moments) if key in total else moments
    return total
