"""Convert: episodes to the state dicts RL2 makes its tensors of, and one number per turn back to one per token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gem_core.training.sequences import TokenSequence, padding_sequence, token_sequences
from gem_core.types import Episode

__all__ = ["rows_of", "spread", "state_dicts"]

StateDict = dict[str, list[Any]]


def rows_of(episode: Episode, end_id: int) -> list[TokenSequence]:
    """The rows of an episode; a placeholder where there is nothing to train, since RL2 takes no trajectory without a row."""
    return token_sequences(episode) or [padding_sequence(episode.prompt_ids(0) if episode.turns else (end_id,), end_id)]


def state_dicts(episode: Episode, end_id: int) -> list[StateDict]:
    """One dict per row, as RL2's own rollout builds them: everything aligned with `states`, before its shift by one."""
    paid = _paid(episode)
    found = []
    for view in rows_of(episode, end_id):
        rewards = [0.0] * len(view.ids)
        for turn, _, end in view.spans:
            rewards[end - 1] = paid.get(turn, 0.0)
        found.append(
            {
                "states": list(view.ids),
                "actions": [token if turn >= 0 else 0 for token, turn in zip(view.ids, view.turn_of)],
                "action_mask": list(view.mask),
                "logps": [p if m else 0.0 for p, m in zip(view.logprobs or [0.0] * len(view.ids), view.mask)],
                "rewards": rewards,
            }
        )
    return found


def spread(view: TokenSequence, per_turn: Sequence[float]) -> list[float]:
    """One number per entry of RL2's tensors, which begin with the second token: its turn's advantage, 0 where untrained."""
    return view.broadcast(per_turn)[1:]


def _paid(episode: Episode) -> dict[int, float]:
    """The rewards RL2 sums and logs, on trained turns only: what an untrained turn earned stands on the one before it, or,
    where there is none, behind it. Credit is not computed from these, but from the episode."""
    trained = [t for t in range(len(episode.turns)) if episode.trained(t)]
    paid = dict.fromkeys(trained, 0.0)
    for turn, reward in enumerate(episode.rewards if trained else ()):
        paid[max((t for t in trained if t <= turn), default=trained[0])] += reward
    return paid
