"""Convert: episodes in verl's own format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gem_core.adapter_kit.batch import response_start, trained_sequences
from gem_core.types import Episode

__all__ = ["to_batch"]


def to_batch(
    episode: Episode, end_id: int, tail: Sequence[int] = (), *, values: bool = False
) -> list[dict[str, Any]]:
    """Convert an episode to the fields of one `AgentLoopOutput` per sequence.

    The response is everything after the first prompt. The untrained `tail` ends the last one.
    `values`: for a critic, which also needs the sequences without trained tokens.
    """
    fields = []
    sequences = trained_sequences(episode, end_id, values=values)
    for number, sequence in enumerate(sequences, 1):
        start, logprobs = response_start(sequence), sequence.logprobs
        end = list(tail) if number == len(sequences) else []
        unsampled = [0.0] * len(end)
        fields.append(
            {
                "prompt_ids": list(sequence.ids[:start]),
                "response_ids": [*sequence.ids[start:], *end],
                "response_mask": [*sequence.mask[start:], *[0] * len(end)],
                "response_logprobs": None if logprobs is None else [*logprobs[start:], *unsampled],
            }
        )
    return fields
