"""Convert: turn episodes into samples of the toy trainer."""

from __future__ import annotations

from collections.abc import Sequence

from toy_trainer import Sample

from gem_core.adapter_kit.batch import sequences_or_padding
from gem_core.errors import EngineError
from gem_core.training.sequences import TokenSequence
from gem_core.types import Episode

__all__ = ["per_token", "to_batch"]


def to_batch(episodes: Sequence[Episode], end_id: int) -> list[Sample]:
    """Return the samples of a batch of episodes.

    A rewritten history gives several samples, a failed episode one untrained padding sequence.
    """
    samples = []
    for number, episode in enumerate(episodes):
        for sequence in sequences_or_padding(episode, end_id):
            if sequence.logprobs is None:
                raise EngineError("the engine returned no logprobs, which the toy trainer needs")
            samples.append(
                Sample(
                    ids=list(sequence.ids),
                    mask=list(sequence.mask[1:]),  # this trainer aligns with ids[1:]
                    logprobs=list(sequence.logprobs[1:]),
                    reward=episode.total_reward or 0.0,  # None for a failed episode
                    # For `put_advantages` and `check_batch`. Without extra fields, a number per
                    # sequence must lead to its episode.
                    extra={"number": number, "episode": episode, "sequence": sequence},
                )
            )
    return samples


def per_token(sequence: TokenSequence, per_turn: Sequence[float]) -> list[float]:
    """Return one number per predicted token: its turn's, or 0 if the token is not trained."""
    return sequence.broadcast(per_turn)[1:]
