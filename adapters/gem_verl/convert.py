"""Convert: an episode as the sequences an agent loop returns, and numbers per turn as numbers per response token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gem_core.adapter_kit.batch import sequences_or_padding
from gem_core.training.sequences import TokenSequence
from gem_core.types import Episode

__all__ = ["per_token", "response_start", "sequences_of", "to_batch"]


def to_batch(episode: Episode, end_id: int) -> list[dict[str, Any]]:
    """The fields of an `AgentLoopOutput` for each sequence of an episode: a prompt, and everything after it."""
    fields = []
    for sequence in sequences_of(episode, end_id):
        start = response_start(sequence)
        fields.append(
            {
                "prompt_ids": list(sequence.ids[:start]),
                "response_ids": list(sequence.ids[start:]),
                "response_mask": list(sequence.mask[start:]),
                "response_logprobs": None
                if sequence.logprobs is None
                else list(sequence.logprobs[start:]),
            }
        )
    return fields


def per_token(sequence: TokenSequence, per_turn: Sequence[float]) -> list[float]:
    """One number per response token: its turn's, 0 where nothing is trained."""
    return sequence.broadcast(per_turn)[response_start(sequence) :]


def sequences_of(episode: Episode, end_id: int) -> list[TokenSequence]:
    """The sequences of an episode that verl gets: those that train something, or a single one that trains nothing."""
    sequences = sequences_or_padding(episode, end_id)
    return [sequence for sequence in sequences if sequence.trained] or sequences[:1]


def response_start(sequence: TokenSequence) -> int:
    """Where the response starts. verl needs one token at least; that of a padding sequence is its end token."""
    return min(sequence.prompt_length, len(sequence.ids) - 1)
