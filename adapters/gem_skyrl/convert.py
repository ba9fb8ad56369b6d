"""Convert: episodes as the output of a SkyRL generator, and numbers per turn as per token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gem_core.adapter_kit.batch import response_start, trained_sequences
from gem_core.training.sequences import TokenSequence, channel_rewards
from gem_core.types import Episode

__all__ = ["PLAYED", "per_token", "to_batch"]

PLAYED = "gem_played"
"""The key of (episode, sequence) pairs in a batch. SkyRL passes on lists that it does not know."""


def to_batch(
    episode: Episode, trajectory_id: Any, end_id: int, gamma: float, tail: Sequence[int] = ()
) -> list[dict[str, Any]]:
    """Return the fields of a `GeneratorOutput` for each sequence of an episode.

    The sequences are the steps of a trajectory. The response is everything after the first prompt;
    the untrained `tail` ends the last one. A failed episode becomes one padding sequence.
    """
    fields = []
    sequences = trained_sequences(episode, end_id)
    for sequence in sequences:
        start, last, logprobs = (
            response_start(sequence),
            sequence is sequences[-1],
            sequence.logprobs,
        )
        end, zeros = (list(tail), [0] * len(tail)) if last else ([], [])
        fields.append(
            {
                "prompt_token_ids": list(sequence.ids[:start]),
                "response_ids": [*sequence.ids[start:], *end],
                "loss_masks": [*sequence.mask[start:], *zeros],
                "rewards": [*channel_rewards(episode, sequence, gamma)[start:], *zeros],
                "rollout_logprobs": None if logprobs is None else [*logprobs[start:], *zeros],
                "stop_reasons": episode.stop.value,
                "trajectory_ids": trajectory_id,
                "is_last_step": last,
                PLAYED: (episode, sequence),
            }
        )
    return fields


def per_token(sequence: TokenSequence, per_turn: Sequence[float]) -> list[float]:
    """Return one number per response token: its turn's, or 0 if the token is not trained."""
    return sequence.broadcast(per_turn)[response_start(sequence) :]
