"""Mini-batches: the sequences of a batch that share an optimizer step.

Each data-parallel rank of verl has an equal part of a batch, in order, and takes its mini-batches
from consecutive sequences. verl divides the loss by the trained tokens of a mini-batch, so each one
needs some: padding sequences, such as those of failed episodes, must not fill one alone.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["deal", "mini_batch_size"]


def mini_batch_size(prompts: int, samples: int, episodes: int, sequences: int) -> int:
    """Return the mini-batch size, in prompts, with which verl takes the intended steps.

    `prompts`: the size in the settings; `episodes`: the number of trained ones. verl counts
    sequences. Here, a mini-batch has the sequences of `prompts * samples` trained episodes, so
    several sequences per episode do not add steps.
    """
    size = prompts * samples
    steps = -(-max(episodes, 1) // size)
    return prompts * -(-sequences // (steps * size))


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
