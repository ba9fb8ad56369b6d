"""Centred: an advantage estimator, A_t = G_t − mean, over the valid turns of the batch on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from gem_core import Episode
from gem_core.training.moments import Gather, Moments
from gem_core.training.sequences import discounted_returns

__all__ = ["centred"]


def centred(
    episodes: Sequence[Episode], *, gamma: float = 1.0, gather: Gather | None = None
) -> list[list[float]]:
    """ReBN without the division: the size of the rewards stays in the gradient.

    Ranks merge `Moments`, never sums, and each gets the statistics of all of them.
    """
    returns = [
        [0.0] * len(e.turns) if e.failed else discounted_returns(e.rewards, gamma) for e in episodes
    ]
    counted = [
        g
        for episode, row in zip(episodes, returns, strict=True)
        for t, g in enumerate(row)
        if episode.trained(t)
    ]
    own = Moments.of(counted)
    everywhere = reduce(Moments.merge, gather(own) if gather is not None else [own])
    return [[everywhere.centre(g) for g in row] for row in returns]
