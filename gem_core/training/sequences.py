"""Token sequences: the ids of an episode, with the turn that sampled each token.

Turns share a sequence while each prompt extends the last prompt and action; a rewritten context
starts a new sequence. `turn_of[i]` is the turn that sampled token i, or -1 for an unsampled token:
an observation, template text, an added turn-end token. The loss mask, token rewards and token
advantages all derive from `turn_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gem_core.arguments import fraction
from gem_core.errors import NotTrainableError
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
    """Token ids, each with the turn that sampled it."""

    ids: tuple[int, ...]
    turn_of: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    """One per id, 0.0 for unsampled tokens; None if a sampled token has none."""
    trained: frozenset[int]
    """The turns of this sequence that are trained."""

    def __repr__(self) -> str:
        trained = f"{sum(self.mask)} trained, turns {sorted(self.trained)}"
        return f"<TokenSequence of {len(self.ids)} ids, {trained}>"

    @property
    def prompt_length(self) -> int:
        """The number of ids before the first sampled one."""
        return next((i for i, t in enumerate(self.turn_of) if t >= 0), len(self.ids))

    @property
    def mask(self) -> tuple[int, ...]:
        """The loss mask: 1 for each trained token."""
        return tuple(int(t in self.trained) for t in self.turn_of)

    @property
    def spans(self) -> tuple[tuple[int, int, int], ...]:
        """(turn, start, end) of each run of sampled tokens, in order."""
        spans: list[tuple[int, int, int]] = []
        for i, turn in enumerate(self.turn_of):
            if turn < 0:
                continue
            if spans and spans[-1][0] == turn and spans[-1][2] == i:
                spans[-1] = (turn, spans[-1][1], i + 1)
            else:
                spans.append((turn, i, i + 1))
        return tuple(spans)

    def broadcast(self, per_turn: Sequence[float]) -> list[float]:
        """Return one number per token: its turn's, or 0.0 if the token is not trained."""
        return [per_turn[t] if t in self.trained else 0.0 for t in self.turn_of]


def token_sequences(episode: Episode) -> list[TokenSequence]:
    """Return the sequences of an episode in the order of its turns; none if it failed.

    A sequence ends with a sampled token; the observation after the last one is in
    `episode.final_observation`.
    """
    if not episode.trainable:
        raise NotTrainableError(
            f"the episode of {episode.env_id} with seed {episode.seed} has no token ids "
            "and cannot be trained (text-only policy); "
            "play it with a policy that returns ids and logprobs"
        )
    if episode.failed:
        return []
    sequences: list[TokenSequence] = []
    ids: list[int] = []
    turn_of: list[int] = []
    logprobs: list[float] | None = []

    def end_sequence() -> None:
        while turn_of and turn_of[-1] < 0:
            turn_of.pop()
        if turn_of:
            del ids[len(turn_of) :]
            aligned = None if logprobs is None else tuple(logprobs[: len(turn_of)])
            trained = frozenset(t for t in set(turn_of) if t >= 0 and episode.trained(t))
            sequences.append(TokenSequence(tuple(ids), tuple(turn_of), aligned, trained))

    for number, turn in enumerate(episode.turns):
        adjacent = not turn.added_ids and bool(turn_of) and turn_of[-1] >= 0
        if turn.restarted or adjacent:
            end_sequence()
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
    end_sequence()
    return sequences


def padding_sequence(prompt_ids: Sequence[int], end_id: int) -> TokenSequence:
    """Return a sequence of a prompt and an end token that trains nothing."""
    ids = (*prompt_ids, end_id)
    return TokenSequence(ids, (-1,) * len(ids), (0.0,) * len(ids), frozenset())


def discounted_returns(rewards: Sequence[float], gamma: float) -> list[float]:
    """Return G_t = r_t + gamma * G_{t+1} for every turn."""
    gamma = fraction("gamma", gamma)
    returns: list[float] = []
    following = 0.0
    for reward in reversed(rewards):
        following = reward + gamma * following
        returns.append(following)
    returns.reverse()
    return returns


def channel_rewards(episode: Episode, sequence: TokenSequence, gamma: float) -> list[float]:
    """Return token rewards for frameworks that pass only rewards and a mask to their estimator.

    The last token of each trained turn t gets G_t - gamma * G_u, where u is the next trained turn
    in the sequence (0 if none). Without masked turns and rewrites that is r_t. With them, the
    framework's recursion over the trained turns of a sequence still yields exactly G_t.
    """
    rewards = [0.0] * len(sequence.ids)
    if not sequence.trained:
        return rewards
    returns = discounted_returns(episode.rewards, gamma)
    following = 0.0
    for turn, _, end in reversed(sequence.spans):
        if turn in sequence.trained:
            rewards[end - 1] = returns[turn] - gamma * following
            following = returns[turn]
    return rewards
