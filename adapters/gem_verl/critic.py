"""Critic: values and targets per turn, from verl's critic with one value per token.

The value of a turn is read after the last token before the turn's first sampled one. The target
V_t + A_t trains the critic at the same position and nowhere else, so every trained turn has the
same weight in verl's value loss, whatever its length. An episode that did not terminate ends with
a tail: its next prompt, after which the critic's value bootstraps.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from gem_core.adapter_kit.batch import response_start
from gem_core.adapter_kit.critic import value_positions
from gem_verl.batch import PlayedBatch, put, stored

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["critic_masks", "read_values", "training_turn_starts"]


def read_values(batch: Any, played: PlayedBatch) -> list[list[float]]:
    """Return the critic's values of each episode: one per turn, then the one after its end."""
    tensors = list(stored(batch, "values")["values"])
    values: list[list[float]] = []
    for number, episode in enumerate(played.episodes):
        own = played.sequences_of(number)
        if episode.failed or not episode.turns:
            values.append([])
            continue
        sequences = [sequence for _, sequence in own]
        of_turns = [
            # verl's value of response token j is the value before it is sampled
            float(tensors[own[s][0]][max(i + 1 - response_start(sequences[s]), 0)])
            for s, i in value_positions(episode, sequences)
        ]
        values.append([*of_turns, float(tensors[own[-1][0]][-1])])
    return values


def critic_masks(batch: Any, played: PlayedBatch) -> list[torch.Tensor]:
    """Return the critic's loss masks: 1 on the first token of each trained turn."""
    masks = []
    for sequence, mask in zip(played.sequences, stored(batch, "response_mask")["response_mask"]):
        first = torch.zeros_like(mask)
        seen: set[int] = set()
        for turn, start, _ in sequence.spans:
            if turn in sequence.trained and turn not in seen:
                first[start - response_start(sequence)] = 1
                seen.add(turn)
        masks.append(first)
    return masks


@contextmanager
def training_turn_starts(batch: Any, played: PlayedBatch) -> Iterator[None]:
    """Give verl the critic's loss masks inside the block."""
    before = stored(batch, "response_mask", "loss_mask")
    masks = critic_masks(batch, played)
    put(batch, response_mask=masks, loss_mask=masks)
    try:
        yield
    finally:
        put(batch, **{name: list(before[name]) for name in ("response_mask", "loss_mask")})
