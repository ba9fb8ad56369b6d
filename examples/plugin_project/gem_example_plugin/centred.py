"""Advantage estimator A_t = G_t − mean, over the valid turns of the batch on all ranks."""

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
    """Compute ReBN advantages without the division by the standard deviation.

    Ranks merge `Moments` instead of sums, and every rank gets the statistics of all ranks.
    """
    returns = [
        [0.0] * len(e.turns) if e.failed else discounted_returns(e.rewards, gamma) for e in episodes
    ]
    valid = [
        g
        for episode, per_turn in zip(episodes, returns, strict=True)
        for t, g in enumerate(per_turn)
        if episode.trained(t)
    ]
    own = Moments.of(valid)
    merged = reduce(Moments.merge, gather(own) if gather is not None else [own])
    return [[merged.centre(g) for g in per_turn] for per_turn in returns]
