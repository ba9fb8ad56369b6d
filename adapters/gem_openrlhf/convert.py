"""Convert: episodes in OpenRLHF's own format, and numbers per turn as numbers per token.

OpenRLHF keeps one reward per episode, but carries the label of a sample unchanged to the code that
computes advantages. Therefore the episode travels in the label, as an `EpisodeLabel`.
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
    """The label of a played sample: the dataset row's own label, the episode and its sequence."""

    label: str
    config: GemConfig
    episode: Episode
    sequence: TokenSequence


def to_batch(
    prompt: str, label: str, config: GemConfig, episode: Episode, end_id: int, logprobs: bool
) -> dict[str, Any]:
    """Convert an episode to the result of an agent executor.

    `action_ranges`, the loss mask, has the trained turns only.
    """
    sequence = one_sequence(episode, end_id, "an agent executor")
    # OpenRLHF needs a number for a failed episode, too
    total = float(episode.total_reward or 0.0)
    return {
        "prompt": prompt,
        "label": EpisodeLabel(label, config, episode, sequence),
        "images": None,
        "mm_train_inputs": None,
        "reward": total,  # for the log: gem computes advantages from the turn rewards
        # for dynamic filtering
        "scores": total if episode.success is None else float(episode.success),
        "observation_tokens": list(sequence.ids),
        "action_ranges": [
            (start, end) for turn, start, end in sequence.spans if turn in sequence.trained
        ],
        "rollout_log_probs": list(sequence.logprobs or ()) if logprobs else None,
        "truncated": truncated(episode),
        "extra_logs": {},
    }


def per_token(sequence: TokenSequence, per_turn: Sequence[float]) -> list[float]:
    """Broadcast one number per turn to one per action position.

    Tokens that are not trained get 0. Position i belongs to token i + 1.
    """
    return sequence.broadcast(per_turn)[1:]


def truncated(episode: Episode) -> bool:
    """Return whether the tokens ran out: in the last turn, or with no room for another turn."""
    cut = bool(episode.turns) and episode.turns[-1].finish is FinishReason.LENGTH
    return cut or episode.stop in _NO_ROOM
