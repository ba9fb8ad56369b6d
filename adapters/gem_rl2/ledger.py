"""Ledger: episodes that were played and wait for their credit, found again by their rows.

RL2 hands tensors from its rollout to its advantages, drops groups in between (`dynamic_filtering`) and, in its main branch,
keeps unfinished groups for later steps (`partial_rollout`). Nothing that names an episode survives that, but its tokens do. Two
episodes with equal rows may be mistaken for each other, which changes nothing: their gradients are equal too.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from gem_core.errors import GemError
from gem_core.types import Episode
from gem_rl2.convert import StateDict

__all__ = ["Ledger", "RowsLostError"]

Key = tuple[tuple[int, ...], ...]


class RowsLostError(GemError, RuntimeError):
    """Raised when what RL2 hands to its loss is not what was played: its ids or its mask were changed on the way."""


class Ledger:
    """What was played and is not credited yet."""

    def __init__(self) -> None:
        self._waiting: dict[Key, list[tuple[Episode, weakref.ref[Any] | None]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, episode: Episode, rows: Sequence[StateDict], owner: Any = None) -> None:
        """Enters an episode. It is forgotten with the next `take` that does not ask for it, but not while its owner lives."""
        held = None if owner is None else weakref.ref(owner)
        self._waiting.setdefault(_key_of_rows(rows), []).append((episode, held))

    def take(self, tensors: Mapping[str, Any], cu_seqs: Any) -> list[Episode]:
        """The episode of each trajectory of RL2's batch, in its order."""
        bounds = [int(x) for x in cu_seqs]
        found = []
        for number, (start, end) in enumerate(pairwise(bounds)):
            waiting = self._waiting.get(_key_of_tensors(tensors, start, end))
            if not waiting:
                raise RowsLostError(
                    f"trajectory {number} of RL2's batch, rows {start} to {end - 1}, is none that was played: its ids or its "
                    "mask were changed on the way to the loss, which would train on tokens nobody sampled"
                )
            found.append(waiting.pop(0)[0])
        self._forget()
        return found

    def _forget(self) -> None:
        kept = {key: [(e, o) for e, o in entries if o is not None and o() is not None] for key, entries in self._waiting.items()}
        self._waiting = {key: entries for key, entries in kept.items() if entries}


def _key_of_rows(rows: Sequence[StateDict]) -> Key:
    """As RL2 shifts them: what stands before each token, which token it is, and whether it is trained."""
    return tuple(
        part for row in rows for part in (tuple(row["states"][:-1]), tuple(row["actions"][1:]), tuple(row["action_mask"][1:]))
    )


def _key_of_tensors(tensors: Mapping[str, Any], start: int, end: int) -> Key:
    lengths = (tensors["eos_mask"][start:end].argmax(-1) + 1).tolist()
    names = ("states", "actions", "action_mask")
    return tuple(tuple(tensors[name][start + i, :n].tolist()) for i, n in enumerate(lengths) for name in names)
