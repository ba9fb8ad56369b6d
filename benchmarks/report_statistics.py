"""Statistics over seeds for the reports: exact tests, false discoveries, and intervals."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from itertools import combinations
from math import comb, fsum, sqrt
from statistics import fmean, stdev

__all__ = [
    "bootstrap",
    "bootstrap_difference",
    "discoveries",
    "permutation_p",
    "sign_flip_p",
    "superiority",
    "t_difference",
    "t_interval",
]

RESAMPLES = 2000
T95 = {4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
"""Student's t of a 95 % interval of a mean, by number of seeds."""


def permutation_p(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Return p of an exact two-sided permutation test of the means.

    None if there are too few seeds for p < 0.05.
    """
    least = (2 if len(ours) == len(theirs) else 1) / comb(len(ours) + len(theirs), len(ours))
    if least >= 0.05:
        return None
    values = [*ours, *theirs]
    total = fsum(values)
    difference = abs(fmean(ours) - fmean(theirs))
    as_large = 0
    for chosen in combinations(values, len(ours)):
        inside = fsum(chosen)
        means = inside / len(ours), (total - inside) / len(theirs)
        as_large += abs(means[0] - means[1]) >= difference - 1e-12
    return as_large / comb(len(values), len(ours))


def sign_flip_p(differences: Sequence[float]) -> float:
    """Return p of an exact two-sided test that paired differences have a mean of 0."""
    observed = abs(fsum(differences))
    sums = [0.0]
    for own in differences:
        sums = [total + sign * own for total in sums for sign in (1, -1)]
    return sum(abs(total) >= observed - 1e-12 for total in sums) / len(sums)


def discoveries(p_values: Sequence[float], rate: float = 0.05, planned: int | None = None) -> int:
    """Return how many of the smallest p values are discoveries (Benjamini and Hochberg).

    `planned` is the number of tests of the plan, if not all of them could be made: a missing test
    counts as p = 1, so it can remove discoveries and never add one.
    """
    tests = len(p_values) if planned is None else planned
    return max((i for i, p in enumerate(sorted(p_values), 1) if p <= rate * i / tests), default=0)


def t_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval (Student's t) of the mean over four to eight seeds."""
    half = T95[len(values)] * stdev(values) / sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def t_difference(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of mean(ours) - mean(theirs), with unequal variances.

    Its t is that of the smaller set, so the interval is rather too wide.
    """
    error = sqrt(sum(stdev(own) ** 2 / len(own) for own in (ours, theirs)))
    half = T95[min(len(ours), len(theirs))] * error
    difference = fmean(ours) - fmean(theirs)
    return difference - half, difference + half


@cache
def _resamples(size: int, stream: int) -> tuple[tuple[int, ...], ...]:
    rng = random.Random(f"{size} {stream}")
    return tuple(tuple(rng.choices(range(size), k=size)) for _ in range(RESAMPLES))


@cache
def _means(values: tuple[float, ...], stream: int) -> list[float]:
    return [fmean([values[i] for i in chosen]) for chosen in _resamples(len(values), stream)]


def _percentiles(means: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(means)
    tail = round(0.025 * len(ordered))
    return ordered[tail], ordered[-1 - tail]


def bootstrap(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval (percentiles) of the mean over seeds."""
    return _percentiles(_means(tuple(values), 0))


def bootstrap_difference(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of mean(ours) - mean(theirs); both are resampled."""
    pairs = zip(_means(tuple(ours), 0), _means(tuple(theirs), 1))
    return _percentiles([a - b for a, b in pairs])


def superiority(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the probability that a seed of ours is above one of theirs; ties count one half."""
    return fmean([(a > b) + (a == b) / 2 for a in ours for b in theirs])
