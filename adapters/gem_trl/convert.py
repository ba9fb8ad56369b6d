"""Convert: episodes in TRL's own format, and numbers per turn as numbers per token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gem_core.adapter_kit.batch import one_sequence
from gem_core.training.metrics import BatchMetrics
from gem_core.training.sequences import TokenSequence
from gem_core.types import Episode

__all__ = ["completion_of", "episode_return", "per_token", "to_batch"]


def to_batch(episodes: Sequence[Episode], end_id: int) -> dict[str, Any]:
    """Convert episodes to the result of a rollout function.

    `env_mask`, the loss mask, is 1 on trained tokens only. Episodes and sequences travel to the
    trainer as extra fields.
    """
    sequences = [one_sequence(episode, end_id, "GRPOTrainer") for episode in episodes]
    starts = [_start(sequence) for sequence in sequences]
    has_logprobs = all(sequence.logprobs is not None for sequence in sequences)
    return {
        "prompt_ids": [list(sequence.ids[:start]) for sequence, start in zip(sequences, starts)],
        "completion_ids": [
            list(sequence.ids[start:]) for sequence, start in zip(sequences, starts)
        ],
        "logprobs": [list((s.logprobs or ())[start:]) for s, start in zip(sequences, starts)]
        if has_logprobs
        else None,
        "env_mask": [list(sequence.mask[start:]) for sequence, start in zip(sequences, starts)],
        "gem_episode": list(episodes),
        "gem_sequence": sequences,
    }


def per_token(sequence: TokenSequence, per_turn: Sequence[float]) -> list[float]:
    """Broadcast one number per turn to one per completion token.

    Tokens that are not trained get 0.
    """
    return sequence.broadcast(per_turn)[_start(sequence) :]


def completion_of(sequence: TokenSequence) -> tuple[list[int], list[int]]:
    """Return (ids, loss mask) of TRL's completion: all tokens after the first prompt."""
    start = _start(sequence)
    return list(sequence.ids[start:]), list(sequence.mask[start:])


def episode_return(
    prompts: Any, completions: Any, gem_episode: Sequence[Episode], log_metric: Any = None, **_: Any
) -> list[float | None]:
    """TRL's reward function: the undiscounted return of each episode, None if it failed.

    Logs the metrics of all ranks' episodes.
    """
    if log_metric is not None:
        from accelerate.utils import gather_object

        # gather them here: TRL 1.10 hangs if its ranks log different names
        for name, value in (
            BatchMetrics.total(gather_object([BatchMetrics.of(gem_episode)])).means().items()
        ):
            log_metric(f"gem/{name}", value)
    return [episode.total_reward for episode in gem_episode]


def _start(sequence: TokenSequence) -> int:
    """Return where the completion starts. TRL needs at least one token after it.

    The completion of a padding sequence is its end token.
    """
    return min(sequence.prompt_length, len(sequence.ids) - 1)
