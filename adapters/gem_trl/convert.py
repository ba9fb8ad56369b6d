"""Convert: episodes to the dictionary a TRL rollout function returns, and back to one number per completion token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gem_core.errors import ConfigError
from gem_core.training.sequences import TokenSequence, padding_sequence, token_sequences
from gem_core.types import Episode

__all__ = ["completion", "row_of", "spread", "to_rows"]


def row_of(episode: Episode, end_id: int) -> TokenSequence:
    """The one row TRL takes per episode; a placeholder where there is nothing to train."""
    views = token_sequences(episode)
    if len(views) > 1:
        raise ConfigError(
            f"the episode of {episode.env_id} with seed {episode.seed} has {len(views)} rows, because its context was "
            "rewritten between "
            "turns; GRPOTrainer takes one row per prompt. Leave out the wrapper that rewrites the history"
        )
    if views:
        return views[0]
    return padding_sequence(episode.prompt_ids(0) if episode.turns else (end_id,), end_id)


def to_rows(episodes: Sequence[Episode], end_id: int) -> dict[str, Any]:
    """What a rollout function returns. The mask is 1 on trained tokens only; the episode and its row travel as extra fields."""
    views = [row_of(episode, end_id) for episode in episodes]
    starts = [_completion_start(view) for view in views]
    known = all(view.logprobs is not None for view in views)
    return {
        "prompt_ids": [list(view.ids[:start]) for view, start in zip(views, starts)],
        "completion_ids": [list(view.ids[start:]) for view, start in zip(views, starts)],
        "logprobs": [list((view.logprobs or ())[start:]) for view, start in zip(views, starts)] if known else None,
        "env_mask": [list(view.mask[start:]) for view, start in zip(views, starts)],
        "gem_episode": list(episodes),
        "gem_row": views,
    }


def completion(view: TokenSequence) -> tuple[list[int], list[int]]:
    """(ids, mask) of what TRL calls the completion: everything behind the first prompt."""
    start = _completion_start(view)
    return list(view.ids[start:]), list(view.mask[start:])


def spread(view: TokenSequence, per_turn: Sequence[float]) -> list[float]:
    """One number per completion token: its turn's advantage, 0 where nothing is trained."""
    return view.broadcast(per_turn)[_completion_start(view) :]


def _completion_start(view: TokenSequence) -> int:
    """TRL needs a completion of at least one token; a placeholder's is its end token."""
    return min(view.prompt_length, len(view.ids) - 1)
