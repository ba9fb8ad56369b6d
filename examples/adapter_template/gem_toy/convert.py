"""Convert: episodes as the samples of the toy trainer."""

from __future__ import annotations

from collections.abc import Sequence

from toy_trainer import Sample

from gem_core.adapter_kit.batch import sequences_or_padding
from gem_core.errors import EngineError
from gem_core.training.sequences import TokenSequence
from gem_core.types import Episode

__all__ = ["per_token", "to_batch"]


def to_batch(episodes: Sequence[Episode], end_id: int) -> list[Sample]:
    """The samples of a batch of episodes. An episode whose history was rewritten becomes several, a failed one a padding
    sequence in which nothing is trained."""
    samples = []
    for number, episode in enumerate(episodes):
        for sequence in sequences_or_padding(episode, end_id):
            if sequence.logprobs is None:
                raise EngineError("the engine returned no logprobs, which the toy trainer needs")
            samples.append(
                Sample(
                    ids=list(sequence.ids),
                    mask=list(
                        sequence.mask[1:]
                    ),  # this trainer aligns with ids[1:]: no number for the first token
                    logprobs=list(sequence.logprobs[1:]),
                    reward=episode.total_reward or 0.0,  # None for a failed episode
                    # What `put_advantages` and `check_batch` need later travels with the sample. A trainer that carries no
                    # extra fields needs a number per sequence that finds the episode again.
                    extra={"number": number, "episode": episode, "sequence": sequence},
                )
            )
    return samples


def per_token(sequence: TokenSequence, per_turn: Sequence[float]) -> list[float]:
    """One number per predicted token: its turn's, 0 where nothing is trained."""
    return sequence.broadcast(per_turn)[1:]
