"""Ledger: episodes that were played and wait for their credit, found again by a number that travels with their rows.

RL2 hands tensors from its rollout to its advantages, drops groups in between (`dynamic_filtering`) and, in its main branch,
keeps unfinished groups for later steps (`partial_rollout`). Any tensor of a row with an entry per token is packed, dealt out and
gathered with it, so each row is given one that says whose it is. Its tokens do not say that: they end with the last action, and
episodes from other starts, paid otherwise, may have the same.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, MutableMapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from gem_core.errors import GemError
from gem_core.types import Episode
from gem_rl2.convert import StateDict

__all__ = ["Ledger", "RowsLostError", "numbered"]

_NUMBER = "gem_number"

Key = tuple[tuple[int, ...], ...]


class RowsLostError(GemError, RuntimeError):
    """Raised when what RL2 hands to its loss is not what was played: its ids or its mask were changed on the way."""


class Ledger:
    """What was played and is not credited yet."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Episode, Key, weakref.ref[Any] | None]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, number: int, episode: Episode, rows: Sequence[StateDict], owner: Any = None) -> None:
        """Enters an episode. It is forgotten with the next `take` that does not ask for it, but not while its owner lives."""
        self._waiting[number] = (episode, _key_of_rows(rows), None if owner is None else weakref.ref(owner))

    def take(self, tensors: MutableMapping[str, Any], cu_seqs: Any) -> list[Episode]:
        """The episode of each trajectory of RL2's batch, in its order. Their numbers leave the batch: the loss needs none."""
        if _NUMBER not in tensors:
            raise RowsLostError(
                f"RL2's batch has no {_NUMBER!r} (it has {sorted(tensors)}), so that nobody knows whose its rows are; this "
                "version, or a patch of it, works differently from those gem_rl2 was tested with"
            )
        numbers = tensors.pop(_NUMBER)[:, 0].tolist()
        found = []
        for trajectory, (start, end) in enumerate(pairwise(cu_seqs.tolist())):
            played = self._waiting.pop(numbers[start], None)
            if played is None or len(set(numbers[start:end])) > 1 or played[1] != _key_of_tensors(tensors, start, end):
                raise RowsLostError(
                    f"trajectory {trajectory} of RL2's batch, rows {start} to {end - 1}, is none that was played: its ids or its "
                    "mask were changed on the way to the loss, which would train on tokens nobody sampled"
                )
            found.append(played[0])
        self._waiting = {n: kept for n, kept in self._waiting.items() if kept[2] is not None and kept[2]() is not None}
        return found


def numbered(number: int, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """RL2's tensors of an episode's rows, with the number it has in the ledger."""
    return [{**row, _NUMBER: torch.full_like(row["states"], number)} for row in rows]


def _key_of_rows(rows: Sequence[StateDict]) -> Key:
    """As RL2 shifts them: what stands before each token, which token it is, and whether it is trained."""
    return tuple(
        part for row in rows for part in (tuple(row["states"][:-1]), tuple(row["actions"][1:]), tuple(row["action_mask"][1:]))
    )


def _key_of_tensors(tensors: Mapping[str, Any], start: int, end: int) -> Key:
    lengths = (tensors["eos_mask"][start:end].argmax(-1) + 1).tolist()
    names = ("states", "actions", "action_mask")
    return tuple(tuple(tensors[name][start + i, :n].tolist()) for i, n in enumerate(lengths) for name in names)
