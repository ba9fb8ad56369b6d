"""Convert: an episode to the dictionary an agent executor returns, and back to one number per token.

OpenRLHF keeps one reward per episode, and hands the label of a sample on, as it is, to where advantages are computed. So that
is where the episode travels: `Played` stands in the label's place until the credit is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gem_core.errors import ConfigError
from gem_core.training.sequences import TokenSequence, padding_sequence, token_sequences
from gem_core.types import Episode, FinishReason, StopReason

if TYPE_CHECKING:
    from gem_openrlhf.config import GemConfig

__all__ = ["Played", "row_of", "spread", "to_response", "truncated"]

_NO_ROOM = frozenset({StopReason.CONTEXT_FULL, StopReason.TOKEN_LIMIT, StopReason.GENERATION_CUT})


@dataclass(frozen=True, slots=True)
class Played:
    """What stands in the place of a sample's label: that label, how its episode went, and the row it became."""

    label: str
    spec: GemConfig
    episode: Episode
    row: TokenSequence


def row_of(episode: Episode, end_id: int) -> TokenSequence:
    """The one row OpenRLHF takes per episode; a placeholder where there is nothing to train."""
    views = token_sequences(episode)
    if len(views) > 1:
        raise ConfigError(
            f"the episode of {episode.env_id} with seed {episode.seed} has {len(views)} rows, because its context was rewritten "
            "between turns; an agent executor returns one sequence. Leave out the wrapper that rewrites the history"
        )
    if views:
        return views[0]
    return padding_sequence(episode.prompt_ids(0) if episode.turns else (end_id,), end_id)


def to_response(prompt: str, label: str, spec: GemConfig, episode: Episode, end_id: int, logprobs: bool) -> dict[str, Any]:
    """What an executor returns. Only trained turns are in `action_ranges`, so that everything else is masked."""
    row = row_of(episode, end_id)
    return {
        "prompt": prompt,
        "label": Played(label, spec, episode, row),
        "images": None,
        "mm_train_inputs": None,
        # what OpenRLHF logs and filters by; the turns' own rewards are in the episode. All samples need a number here.
        "reward": float(episode.total_reward or 0.0),
        "scores": float(episode.total_reward or 0.0 if episode.success is None else episode.success),
        "observation_tokens": list(row.ids),
        "action_ranges": [(start, end) for turn, start, end in row.spans if turn in row.trained],
        "rollout_log_probs": list(row.logprobs or ()) if logprobs else None,
        "truncated": truncated(episode),
        "extra_logs": {},
    }


def truncated(episode: Episode) -> bool:
    """Whether tokens ran out: the last generation hit its cap, or there was no room for another."""
    cut = bool(episode.turns) and episode.turns[-1].finish is FinishReason.LENGTH
    return cut or episode.stop in _NO_ROOM


def spread(row: TokenSequence, per_turn: Sequence[float]) -> list[float]:
    """One number per action position, 0 where nothing is trained; position i is the log-probability of token i + 1."""
    return row.broadcast(per_turn)[1:]
