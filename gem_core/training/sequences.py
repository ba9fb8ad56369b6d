"""Tokens: an episode as rows of token ids, with the turn that sampled each token.

Turns share a row while each prompt is the last prompt and action with something behind it; a rewritten context starts a new
row. `turn_of[i]` is the turn that sampled token i, or -1 for every token nobody sampled: observations, template glue, a
turn-end token that had to be added. Masks, token rewards and token advantages all follow from that one array.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gem_core.errors import ConfigError, NotTrainableError
from gem_core.types import Episode

__all__ = [
    "TokenSequence",
    "channel_rewards",
    "discounted_returns",
    "padding_sequence",
    "token_sequences",
]


@dataclass(frozen=True, slots=True, repr=False)
class TokenSequence:
    """One row: ids, and for each the turn that sampled it."""

    ids: tuple[int, ...]
    turn_of: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    """One per id, 0.0 where nobody sampled; None where a sampled token has none."""
    trained: frozenset[int]
    """The turns of this row whose tokens are trained."""

    def __repr__(self) -> str:
        return f"<TokenSequence of {len(self.ids)} ids, {sum(self.mask)} trained, turns {sorted(self.trained)}>"

    @property
    def prompt_length(self) -> int:
        """How many ids stand before the first sampled one."""
        return next((i for i, t in enumerate(self.turn_of) if t >= 0), len(self.ids))

    @property
    def mask(self) -> tuple[int, ...]:
        """1 for each token that is trained."""
        return tuple(int(t in self.trained) for t in self.turn_of)

    @property
    def spans(self) -> tuple[tuple[int, int, int], ...]:
        """(turn, start, end) of each sampled stretch, in order; a stretch never spans two turns."""
        found: list[tuple[int, int, int]] = []
        for i, turn in enumerate(self.turn_of):
            if turn < 0:
                continue
            if found and found[-1][0] == turn and found[-1][2] == i:
                found[-1] = (turn, found[-1][1], i + 1)
            else:
                found.append((turn, i, i + 1))
        return tuple(found)

    def broadcast(self, per_turn: Sequence[float]) -> list[float]:
        """One number per token: its turn's, and 0.0 for every token that is not trained."""
        return [per_turn[t] if t in self.trained else 0.0 for t in self.turn_of]


def token_sequences(episode: Episode) -> list[TokenSequence]:
    """The rows of an episode, in the order of its turns; none for a failed episode, whose rewards are unknown.

    A row ends with the last sampled token: what the environment said after it is in `episode.final_observation`.
    """
    if not episode.trainable:
        raise NotTrainableError(
            f"the episode of {episode.env_id} with seed {episode.seed} was played without token ids (a text-only policy), so "
            "nothing of it can be trained; play it with a policy that returns ids and logprobs"
        )
    if episode.failed:
        return []
    views: list[TokenSequence] = []
    ids: list[int] = []
    turn_of: list[int] = []
    logprobs: list[float] | None = []

    def end_row() -> None:
        while turn_of and turn_of[-1] < 0:
            turn_of.pop()
        if turn_of:
            del ids[len(turn_of) :]
            kept = None if logprobs is None else tuple(logprobs[: len(turn_of)])
            trained = frozenset(t for t in set(turn_of) if t >= 0 and episode.trained(t))
            views.append(TokenSequence(tuple(ids), tuple(turn_of), kept, trained))

    for number, turn in enumerate(episode.turns):
        adjacent = not turn.added_ids and bool(turn_of) and turn_of[-1] >= 0
        if turn.restarted or adjacent:
            end_row()
            added: tuple[int, ...] = episode.prompt_ids(number)
            ids, turn_of, logprobs = [], [], []
        else:
            added = turn.added_ids
        ids += added
        turn_of += [-1] * len(added)
        ids += turn.action_ids
        turn_of += [number] * len(turn.action_ids)
        if turn.action_ids and turn.logprobs is None:
            logprobs = None
        if logprobs is not None:
            logprobs += [0.0] * len(added)
            logprobs += turn.logprobs or ()
    end_row()
    return views


def padding_sequence(prompt_ids: Sequence[int], end_id: int) -> TokenSequence:
    """The row of an episode with nothing to train, where a framework insists on one: prompt and one end token, all -1."""
    ids = (*prompt_ids, end_id)
    return TokenSequence(ids, (-1,) * len(ids), (0.0,) * len(ids), frozenset())


def discounted_returns(rewards: Sequence[float], gamma: float) -> list[float]:
    """G_t = r_t + gamma * G_{t+1}, from the last turn back."""
    if not 0.0 <= gamma <= 1.0:
        raise ConfigError(f"gamma must be between 0 and 1; given: {gamma!r}")
    returns: list[float] = []
    following = 0.0
    for reward in reversed(rewards):
        following = reward + gamma * following
        returns.append(following)
    returns.reverse()
    return returns


def channel_rewards(episode: Episode, view: TokenSequence, gamma: float) -> list[float]:
    """Token rewards for frameworks that carry only rewards and a mask to their estimator.

    On the last token of each trained turn t stands G_t - gamma * G_u, u being the next trained turn in the same row (0 if
    none). That is r_t in the plain case; and the framework's recursion over the trained turns of a row gives back exactly
    G_t where turns are masked or empty and where rows are split.
    """
    rewards = [0.0] * len(view.ids)
    if not view.trained:
        return rewards
    returns = discounted_returns(episode.rewards, gamma)
    following = 0.0
    for turn, _, end in reversed(view.spans):
        if turn in view.trained:
            rewards[end - 1] = returns[turn] - gamma * following
            following = returns[turn]
    return rewards
