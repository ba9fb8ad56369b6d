"""Ledger: episodes without advantages, by a number that travels with their sequences.

RL2 passes tensors from its rollout to `compute_advantages` and may drop groups in between
(`dynamic_filtering`). It packs, scatters and gathers every tensor with one entry per token, so we
add one that holds the number of the episode. Token ids do not identify an episode: episodes with
other seeds and rewards may have the same ids.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from gem_core.errors import BatchMismatchError
from gem_core.types import Episode

__all__ = ["Ledger", "numbered"]

_NUMBER = "gem_number"


class Ledger:
    """Episodes without advantages, by number."""

    def __init__(self) -> None:
        self._waiting: dict[int, Episode] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, number: int, episode: Episode) -> None:
        """Keep an episode until the next `take`."""
        self._waiting[number] = episode

    def find(self, batch: Mapping[str, Any]) -> dict[int, Episode]:
        """Return the episodes in RL2's batch by their numbers."""
        return {n: self._waiting[n] for n in dict.fromkeys(_numbers(batch)) if n in self._waiting}

    def take(self, batch: MutableMapping[str, Any], cu_seqs: Any) -> list[Episode]:
        """Return the episode of each trajectory in RL2's batch, in the batch's order.

        Removes the numbers from the batch, because the loss does not know them.
        """
        numbers = _numbers(batch)
        del batch[_NUMBER]
        episodes = []
        for trajectory, (start, end) in enumerate(pairwise(cu_seqs.tolist())):
            episode = self._waiting.pop(numbers[start], None)
            if episode is None or len(set(numbers[start:end])) > 1:
                raise BatchMismatchError(
                    f"trajectory {trajectory} of RL2's batch is not one played episode: its "
                    f"sequences {start} to {end - 1} have the episode numbers "
                    f"{sorted(set(numbers[start:end]))}. A patch or another version of RL2 changes "
                    "batches; use a version of RL2 that the adapter supports"
                )
            episodes.append(episode)
        return episodes

    def drop(self) -> list[Episode]:
        """Remove and return all episodes; after `take`, they are those that RL2 dropped."""
        episodes = list(self._waiting.values())
        self._waiting.clear()
        return episodes


def numbered(number: int, sequences: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add the number of an episode to RL2's tensors of its sequences."""
    return [
        {**sequence, _NUMBER: torch.full_like(sequence["states"], number)} for sequence in sequences
    ]


def _numbers(batch: Mapping[str, Any]) -> list[int]:
    """Return the episode number of each sequence in RL2's batch."""
    if _NUMBER not in batch:
        raise BatchMismatchError(
            f"RL2's batch has no {_NUMBER!r} (its keys: {sorted(batch)}); use a version of RL2 "
            "that the adapter supports"
        )
    numbers: list[int] = batch[_NUMBER][:, 0].tolist()
    return numbers
