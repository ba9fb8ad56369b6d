"""Convert: an episode as the dictionary an agent executor returns.

OpenRLHF keeps one reward per episode, and passes the label of a sample through unchanged to where advantages are computed. So
the episode travels in the label, as an `EpisodeLabel`, until its advantages are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gem_core.adapter_kit.batch import one_sequence
from gem_core.training.sequences import TokenSequence
from gem_core.types import Episode, FinishReason, StopReason

if TYPE_CHECKING:
    from gem_openrlhf.config import GemConfig

__all__ = ["EpisodeLabel", "per_token", "to_batch", "truncated"]

_NO_ROOM = frozenset({StopReason.CONTEXT_FULL, StopReason.TOKEN_LIMIT, StopReason.GENERATION_CUT})


@dataclass(frozen=True, slots=True)
class EpisodeLabel:
    """The label of a sample that was played: the data-set row's own, the episode, and its sequence."""

    label: str
    config: GemConfig
    episode: Episode
    sequence: TokenSequence


def to_batch(
    prompt: str, label: str, config: GemConfig, episode: Episode, end_id: int, logprobs: bool
) -> dict[str, Any]:
    """The result of an agent executor. `action_ranges` holds the trained turns only; everything else is masked."""
    sequence = one_sequence(episode, end_id, "an agent executor")
    total = float(episode.total_reward or 0.0)  # OpenRLHF needs a number for a failed episode, too
    return {
        "prompt": prompt,
        "label": EpisodeLabel(label, config, episode, sequence),
        "images": None,
        "mm_train_inputs": None,
        "reward": total,  # logged; the rewards of the turns are in the episode
        "scores": total
        if episode.success is None
        else float(episode.success),  # what dynamic filtering compares
        "observation_tokens": list(sequence.ids),
        "action_ranges": [
            (start, end) for turn, start, end in sequence.spans if turn in sequence.trained
        ],
        "rollout_log_probs": list(sequence.logprobs or ()) if logprobs else None,
        "truncated": truncated(episode),
        "extra_logs": {},
    }


def per_token(sequence: TokenSequence, per_turn: Sequence[float]) -> list[float]:
    """One number per action position, 0 where nothing is trained; position i is the log-probability of token i + 1."""
    return sequence.broadcast(per_turn)[1:]


def truncated(episode: Episode) -> bool:
    """Whether the tokens ran out: the last generation hit its cap, or there was no room for another."""
    cut = bool(episode.turns) and episode.turns[-1].finish is FinishReason.LENGTH
    return cut or episode.stop in _NO_ROOM
