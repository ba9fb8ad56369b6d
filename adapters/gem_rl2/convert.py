"""Convert: episodes in RL2's own format, and numbers per turn as numbers per token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gem_core.adapter_kit.batch import sequences_or_padding
from gem_core.training.sequences import TokenSequence
from gem_core.types import Episode, FinishReason

__all__ = [
    "StateDict",
    "actions_of",
    "generation_metrics",
    "per_token",
    "to_batch",
    "turn_starts",
]

StateDict = dict[str, list[Any]]
"""RL2's dict of one sequence, from which it builds tensors."""


def to_batch(episode: Episode, end_id: int) -> list[StateDict]:
    """Convert an episode to one state dict per sequence.

    All lists are aligned with `states`; RL2 shifts them by one later.
    """
    rewards = _rewards(episode)
    return [
        {
            "states": list(sequence.ids),
            "actions": actions_of(sequence),
            "action_mask": list(sequence.mask),
            "logps": [
                p if m else 0.0
                for p, m in zip(sequence.logprobs or [0.0] * len(sequence.ids), sequence.mask)
            ],
            "rewards": _at_turn_ends(sequence, rewards),
        }
        for sequence in sequences_or_padding(episode, end_id)
    ]


def per_token(sequence: TokenSequence, per_turn: Sequence[float]) -> list[float]:
    """Broadcast one number per turn to one per entry of RL2's tensors.

    Tokens that are not trained get 0. RL2's tensors start with the second token.
    """
    return sequence.broadcast(per_turn)[1:]


def turn_starts(sequence: TokenSequence) -> list[tuple[int, int]]:
    """Return (turn, index in RL2's tensors) of the first token of each trained turn."""
    return [(turn, start - 1) for turn, start, _ in sequence.spans if turn in sequence.trained]


def actions_of(sequence: TokenSequence) -> list[int]:
    """Return the targets of RL2's loss: the sampled ids of a sequence, 0 elsewhere."""
    return [token if turn >= 0 else 0 for token, turn in zip(sequence.ids, sequence.turn_of)]


def generation_metrics(episode: Episode) -> dict[str, list[Any]]:
    """Return the metrics that RL2 logs of each generation."""
    turns = episode.turns
    return {
        "response_length": [len(turn.action_ids) for turn in turns] or [0],
        "length_clip_ratio": [turn.finish is FinishReason.LENGTH for turn in turns] or [False],
    }


def _rewards(episode: Episode) -> dict[int, float]:
    """Return the reward of each trained turn, which RL2 sums and logs.

    The reward of an untrained turn moves to the trained turn before it; if there is none, to the
    first trained turn. Advantages do not use these rewards.
    """
    trained = [turn for turn in range(len(episode.turns)) if episode.trained(turn)]
    rewards = dict.fromkeys(trained, 0.0)
    for turn, reward in enumerate(episode.rewards if trained else ()):
        rewards[max((t for t in trained if t <= turn), default=trained[0])] += reward
    return rewards


def _at_turn_ends(sequence: TokenSequence, rewards: dict[int, float]) -> list[float]:
    per_id = [0.0] * len(sequence.ids)
    for turn, _, end in sequence.spans:
        per_id[end - 1] = rewards.get(turn, 0.0)
    return per_id
