"""Convert: episodes as the state dicts RL2 makes its tensors of, and one number per turn as one per token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gem_core.adapter_kit.batch import sequences_or_padding
from gem_core.training.sequences import TokenSequence
from gem_core.types import Episode, FinishReason

__all__ = ["StateDict", "actions_of", "generation_metrics", "per_token", "to_batch"]

StateDict = dict[str, list[Any]]


def to_batch(episode: Episode, end_id: int) -> list[StateDict]:
    """One dict per sequence, as RL2's own rollout builds them: everything aligned with `states`, before its shift by one."""
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
    """One number per entry of RL2's tensors, which begin with the second token: its turn's, 0 where nothing is trained."""
    return sequence.broadcast(per_turn)[1:]


def actions_of(sequence: TokenSequence) -> list[int]:
    """The sampled ids of a sequence, 0 elsewhere: the targets of RL2's loss."""
    return [token if turn >= 0 else 0 for token, turn in zip(sequence.ids, sequence.turn_of)]


def generation_metrics(episode: Episode) -> dict[str, list[Any]]:
    """What RL2 logs of each generation."""
    return {
        "response_length": [len(turn.action_ids) for turn in episode.turns] or [0],
        "length_clip_ratio": [turn.finish is FinishReason.LENGTH for turn in episode.turns]
        or [False],
    }


def _rewards(episode: Episode) -> dict[int, float]:
    """The rewards RL2 sums and logs, on trained turns only: the reward of an untrained turn moves to the trained turn before
    it or, where there is none, to the first one after it. Advantages do not use these; they come from the episode."""
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
