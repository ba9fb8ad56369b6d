"""Ledger: episodes that wait for their advantages, each under a number that travels with its sequences.

RL2 hands tensors from its rollout to its advantages and drops groups in between (`dynamic_filtering`). It packs, scatters and
gathers every tensor that has one entry per token, so each sequence gets one more such tensor with the number of its episode.
Token ids alone do not identify an episode: they end with the last action, and episodes from other seeds, with other rewards,
may have the same ids.
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

    def take(self, batch: MutableMapping[str, Any], cu_seqs: Any) -> list[Episode]:
        """The episode of each trajectory of RL2's batch, in its order. Removes the numbers from the batch, which the loss does
        not need, and forgets the episodes that RL2 dropped."""
        if _NUMBER not in batch:
            raise BatchMismatchError(
                f"RL2's batch has no {_NUMBER!r} (it has {sorted(batch)}), so its sequences cannot be matched with episodes; use "
                "a version of RL2 the adapter supports, without patches to its batches"
            )
        numbers = batch.pop(_NUMBER)[:, 0].tolist()
        episodes = []
        for trajectory, (start, end) in enumerate(pairwise(cu_seqs.tolist())):
            episode = self._waiting.pop(numbers[start], None)
            if episode is None or len(set(numbers[start:end])) > 1:
                raise BatchMismatchError(
                    f"trajectory {trajectory} of RL2's batch, sequences {start} to {end - 1}, is not what was played: its "
                    f"sequences have the numbers {sorted(set(numbers[start:end]))}, which are not those of one waiting episode. "
                    "A patch or another version of RL2 changes batches; use a version the adapter supports"
                )
            episodes.append(episode)
        self.forget()
        return episodes

    def forget(self) -> None:
        """Forget the episodes of this batch that RL2 dropped."""
        self._waiting.clear()


def numbered(number: int, sequences: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """RL2's tensors of an episode's sequences, with the number of the episode."""
    return [
        {**sequence, _NUMBER: torch.full_like(sequence["states"], number)} for sequence in sequences
    ]
