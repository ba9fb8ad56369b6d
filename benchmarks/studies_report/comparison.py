"""Comparison of two sets of seeds: test, effect sizes, and the verdict within a family of tests."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol, TypeVar

from report_statistics import (
    bootstrap_difference,
    discoveries,
    permutation_p,
    superiority,
    t_difference,
    t_interval,
)

__all__ = [
    "LEAST_SEEDS",
    "Comparison",
    "Tested",
    "compare",
    "significant",
    "verdict",
    "with_interval",
]

LEAST_SEEDS = 4
"""Fewer seeds on either side give no test and no interval."""
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Comparison:
    """Ours minus theirs, over seeds."""

    difference: float
    low: float
    high: float
    superiority: float
    """Probability that a seed of ours is above one of theirs."""
    p: float
    seeds: tuple[int, int]

    def effect(self) -> str:
        return f"{self.difference:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


def compare(
    ours: Sequence[float], theirs: Sequence[float], *, resampled: bool = False
) -> Comparison | None:
    """Compare two sets of seeds; None if either has fewer than four.

    `resampled`: the interval is a bootstrap interval, as credit/ and critic/ were planned.
    """
    if min(len(ours), len(theirs)) < LEAST_SEEDS:
        return None
    p = permutation_p(ours, theirs)
    assert p is not None, "four seeds on either side allow p < 0.05"
    interval = bootstrap_difference if resampled else t_difference
    return Comparison(
        fmean(ours) - fmean(theirs),
        *interval(ours, theirs),
        superiority(ours, theirs),
        p,
        (len(ours), len(theirs)),
    )


class Tested(Protocol):
    """What has a p value."""

    @property
    def p(self) -> float: ...


def significant(tests: Mapping[Key, Tested | None], planned: int) -> set[Key]:
    """Return the discoveries at a rate of 5 % over the planned tests (Benjamini and Hochberg)."""
    known = {key: test.p for key, test in tests.items() if test is not None}
    count = discoveries(list(known.values()), planned=planned)
    return set(sorted(known, key=lambda key: known[key])[:count])


def verdict(comparison: Comparison, outcome: str, significant: bool, seeds: int) -> str:
    """Return the outcome of a significant test; fewer than the planned `seeds` are preliminary."""
    text = outcome if significant else "not significant"
    return text if min(comparison.seeds) >= seeds else f"{text}, preliminary"


def with_interval(values: Sequence[float], percent: bool = False) -> str:
    """Format a mean over seeds with its 95 % interval (Student's t), if there are four seeds.

    The interval of a share, in percent, ends at 0 and 100 %.
    """
    scale, digits = (100, 1) if percent else (1, 3)
    unit = " %" if percent else ""
    mean = f"{scale * fmean(values):.{digits}f}"
    if len(values) < LEAST_SEEDS:
        return mean + unit
    low, high = t_interval(values)
    low, high = (scale * end for end in ((max(low, 0), min(high, 1)) if percent else (low, high)))
    return f"{mean} [{low:.{digits}f}, {high:.{digits}f}]{unit}"
