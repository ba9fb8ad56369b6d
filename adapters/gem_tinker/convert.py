"""Convert: episodes as Tinker's Datum, and numbers per turn as numbers per token."""

from __future__ import annotations

from collections.abc import Sequence

from tinker import Datum, ModelInput, TensorData

from gem_core.errors import EngineError
from gem_core.training.sequences import TokenSequence, token_sequences
from gem_core.types import Episode

__all__ = ["Row", "per_token", "to_batch"]

Row = tuple[TokenSequence, Datum]
"""One sequence of a batch, and the Datum that trains it."""


def to_batch(episodes: Sequence[Episode], per_turn: Sequence[Sequence[float]]) -> list[Row]:
    """Convert episodes and their advantages to one Datum per sequence with trained tokens.

    The tensors are aligned with the targets, which are the ids from the second on.
    """
    rows = []
    for episode, advantages in zip(episodes, per_turn, strict=True):
        for sequence in token_sequences(episode):
            if sequence.logprobs is None:
                raise EngineError("Tinker's sampler returned no logprobs, which its losses need")
            if sequence.trained:  # Tinker charges for every token
                inputs = {
                    "target_tokens": TensorData(list(sequence.ids[1:]), "int64"),
                    "logprobs": TensorData(list(sequence.logprobs[1:]), "float32"),
                    "advantages": TensorData(per_token(sequence, advantages), "float32"),
                }
                ids = ModelInput.from_ints(list(sequence.ids[:-1]))
                rows.append((sequence, Datum(ids, inputs)))
    return rows


def per_token(sequence: TokenSequence, per_turn: Sequence[float]) -> list[float]:
    """Broadcast one number per turn to one per target; untrained tokens get 0.

    Tinker's losses have no mask: an advantage of 0 takes a token out of the gradient.
    """
    return sequence.broadcast(per_turn)[1:]
