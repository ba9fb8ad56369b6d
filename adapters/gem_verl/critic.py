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

from gem_core.adapter_kit.played import PlayedBatch
from gem_verl.batch import put, stored

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["critic_masks", "read_values", "training_turn_starts"]


def read_values(batch: Any, played: PlayedBatch) -> list[list[float]]:
    """Return the critic's values of each episode: one per turn, then the one after its end."""
    return played.values([values.tolist() for values in stored(batch, "values")["values"]])


def critic_masks(batch: Any, played: PlayedBatch) -> list[torch.Tensor]:
    """Return the critic's loss masks: 1 on the first token of each trained turn."""
    masks = [torch.zeros_like(mask) for mask in stored(batch, "response_mask")["response_mask"]]
    for mask, own in zip(masks, played.critic_masks()):
        mask[: len(own)] = mask.new_tensor(own)  # a tail may follow the sequence
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
