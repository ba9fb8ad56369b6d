"""Batch: the sequences of episodes for a trainer, and the check that they reach its loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gem_core.errors import BatchMismatchError, ConfigError
from gem_core.training.sequences import TokenSequence, padding_sequence, token_sequences
from gem_core.types import Episode

__all__ = [
    "as_evaluated",
    "as_trained",
    "check_sequence",
    "one_sequence",
    "response_start",
    "sequences_or_padding",
    "trained_sequences",
]


def sequences_or_padding(episode: Episode, end_id: int) -> list[TokenSequence]:
    """Return the sequences of an episode, or one untrained padding sequence if it has none."""
    sequences = token_sequences(episode)
    if sequences:
        return sequences
    return [padding_sequence(episode.prompt_ids(0) if episode.turns else (end_id,), end_id)]


def trained_sequences(
    episode: Episode, end_id: int, *, values: bool = False
) -> list[TokenSequence]:
    """Return the sequences with trained tokens; if there are none, one untrained sequence.

    `values`: also return the others, because a critic's values of their turns are needed.
    """
    sequences = sequences_or_padding(episode, end_id)
    trained = [sequence for sequence in sequences if sequence.trained]
    return (sequences if values and trained else trained) or sequences[:1]


def response_start(sequence: TokenSequence) -> int:
    """Return the index of the first response token, for trainers with a prompt and a response.

    They need at least one response token: in a padding sequence it is the end token.
    """
    return min(sequence.prompt_length, len(sequence.ids) - 1)


def one_sequence(episode: Episode, end_id: int, trainer: str) -> TokenSequence:
    """Return the only sequence of an episode; a rewritten history raises `ConfigError`."""
    sequences = sequences_or_padding(episode, end_id)
    if len(sequences) > 1:
        raise ConfigError(
            f"the episode of {episode.env_id} with seed {episode.seed} has {len(sequences)} "
            f"sequences because its context was rewritten, but {trainer} takes one per episode; "
            "remove the wrapper that rewrites the history"
        )
    return sequences[0]


def check_sequence(
    where: str,
    ids: Sequence[int],
    mask: Sequence[int],
    expected_ids: Sequence[int],
    expected_mask: Sequence[int],
) -> None:
    """Raise `BatchMismatchError` unless a trainer's sequence has the expected ids and loss mask.

    Padding may follow, but must not be trained.
    """
    ids, mask = list(ids), list(mask)
    expected_ids, expected_mask = list(expected_ids), list(expected_mask)
    padding = [0] * (len(mask) - len(expected_mask))
    if ids[: len(expected_ids)] != expected_ids or mask != expected_mask + padding:
        raise BatchMismatchError(
            f"{where} is not what was played: its ids or loss mask changed before the loss, which "
            f"would train {sum(map(bool, mask))} tokens where {sum(expected_mask)} were sampled. "
            "A patch or another version of the trainer changes batches; "
            "use a version that the adapter supports"
        )


def as_evaluated(episode: Episode) -> Episode:
    """Return an evaluation episode as the record keeps it: `final_info["evaluation"]` is True."""
    return replace(episode, final_info={**episode.final_info, "evaluation": True})


def as_trained(episode: Episode, advantages: Sequence[float], update: int) -> Episode:
    """Return the episode as the record keeps it: with its advantages and the update it trained.

    `final_info["advantages"]` has one number per turn, None for a turn that is not trained.
    """
    trained = [a if episode.trained(t) else None for t, a in enumerate(advantages)]
    facts = {"advantages": trained, "update": update}
    return replace(episode, final_info={**episode.final_info, **facts})
