"""Convert: an episode to the rows verl trains on, with the reward channel that carries per-turn credit to its estimator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gem_core.training.sequences import TokenSequence, channel_rewards, discounted_returns, padding_sequence, token_sequences
from gem_core.types import Episode

__all__ = ["Row", "to_rows"]


@dataclass(frozen=True, slots=True)
class Row:
    """What an agent loop returns for one row: a prompt, and everything behind it."""

    prompt_ids: list[int]
    response_ids: list[int]
    mask: list[int]
    """1 for each id of the response that is trained."""
    logprobs: list[float] | None
    rewards: list[float]
    """One per id of the response: the reward channel."""


def to_rows(episode: Episode, end_id: int, *, gamma: float, whole: bool = False) -> list[Row]:
    """The rows of an episode that have something to train, or one placeholder where none has.

    verl hands its estimators token rewards and a mask, nothing else. So on the last token of each trained turn t stands
    G_t - gamma * G_u, u the next trained turn in the row, and their recursion over the turns of a row gives back G_t. With
    `whole`, the first trained turn also carries what masked turns before it earned, so that it stands for the whole episode:
    what group estimators compare, and what an estimator of verl's own sums up (with gamma = 1).
    """
    views = [view for view in token_sequences(episode) if view.trained]
    if not views:
        prompt = episode.prompt_ids(0) if episode.turns else (end_id,)
        return [_row(padding_sequence(prompt, end_id), [0.0] * (len(prompt) + 1))]
    channels = [channel_rewards(episode, view, gamma) for view in views]
    if whole:
        turn, _, end = next(span for span in views[0].spans if span[0] in views[0].trained)
        returns = discounted_returns(episode.rewards, gamma)
        channels[0][end - 1] += returns[0] - returns[turn]
    return [_row(view, rewards) for view, rewards in zip(views, channels)]


def _row(view: TokenSequence, rewards: Sequence[float]) -> Row:
    """verl needs a response of at least one token; a placeholder's is its end token."""
    start = min(view.prompt_length, len(view.ids) - 1)
    return Row(
        prompt_ids=list(view.ids[:start]),
        response_ids=list(view.ids[start:]),
        mask=list(view.mask[start:]),
        logprobs=None if view.logprobs is None else list(view.logprobs[start:]),
        rewards=list(rewards[start:]),
    )
