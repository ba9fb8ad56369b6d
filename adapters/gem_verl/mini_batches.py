"""Mini-batches: the sequences of a batch that share an optimizer step.

Each data-parallel rank of verl has an equal part of a batch, in order, and takes its mini-batches
from consecutive sequences. verl divides the loss by the trained tokens of a mini-batch, so each one
needs some: padding sequences, such as those of failed episodes, must not fill one alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

__all__ = ["deal", "optimizer_steps", "padded_size"]


def optimizer_steps(mini_batch: int, episodes: int) -> int:
    """Return the number of optimizer steps of an update: one per mini-batch of trained episodes.

    verl counts sequences, which would add steps if an episode has several.
    """
    return -(-max(episodes, 1) // mini_batch)


def padded_size(sequences: int, steps: Iterable[int], unit: int) -> int:
    """Return the size of a batch, with padding, that each number of steps divides.

    Its mini-batches are then equal, and multiples of `unit` sequences.
    """
    multiple = math.lcm(*(unit * number for number in steps))
    return multiple * -(-sequences // multiple)


def deal(trained: Sequence[bool], ranks: int, steps: int) -> list[int]:
    """Return an order of the sequences with trained ones in every mini-batch, if there are enough.

    A sequence stays on its rank, because verl has balanced the ranks.
    """
    share = len(trained) // ranks
    order: list[int] = []
    following = 0
    for rank in range(ranks):
        own = range(rank * share, (rank + 1) * share)
        parts: list[list[int]] = [[] for _ in range(steps)]
        for i in own:
            if trained[i]:
                parts[following % steps].append(i)
                following += 1
        untrained = iter([i for i in own if not trained[i]])
        for part in parts:
            room = share // steps - len(part)
            order += [*part, *(i for _, i in zip(range(room), untrained))]
        order += untrained  # if the steps do not divide the sequences
    return order
