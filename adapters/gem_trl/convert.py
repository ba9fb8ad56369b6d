"""Convert: episodes in TRL's own format, and numbers per turn as numbers per token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gem_core.adapter_kit.batch import response_start, sequences_or_padding
from gem_core.training.metrics import BatchMetrics
from gem_core.training.sequences import TokenSequence, padding_sequence
from gem_core.types import Episode

__all__ = [
    "Row",
    "completion_of",
    "episode_return",
    "padding_row",
    "per_token",
    "rows_of",
    "to_batch",
    "turn_ratios",
]


@dataclass(frozen=True)
class Row:
    """One sequence of TRL's batch."""

    sequence: TokenSequence
    number: int
    """The number of its episode in the batch; -1 in a padding row."""
    episode: Episode | None
    """None in a padding row, and in all rows of an episode but the first: metrics count it once."""


def rows_of(episodes: Sequence[Episode], end_id: int) -> tuple[list[Row], list[Row]]:
    """Return the first row of each episode, and the further rows of rewritten histories.

    TRL has one prompt per episode, so the first rows take the places of its prompts.
    """
    first, further = [], []
    for number, episode in enumerate(episodes):
        sequence, *others = sequences_or_padding(episode, end_id)
        first.append(Row(sequence, number, episode))
        further += [Row(other, number, None) for other in others]
    return first, further


def padding_row(end_id: int) -> Row:
    """Return a row that trains nothing."""
    return Row(padding_sequence((end_id,), end_id), -1, None)


def to_batch(rows: Sequence[Row]) -> dict[str, Any]:
    """Convert rows to the result of a rollout function.

    `env_mask`, the loss mask, is 1 on trained tokens only. Rows travel to the trainer as extra
    fields.
    """
    sequences = [row.sequence for row in rows]
    starts = [response_start(sequence) for sequence in sequences]
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
        "gem_row": list(rows),
    }


def per_token(sequence: TokenSequence, per_turn: Sequence[float]) -> list[float]:
    """Broadcast one number per turn to one per completion token.

    Tokens that are not trained get 0.
    """
    return sequence.broadcast(per_turn)[response_start(sequence) :]


def completion_of(sequence: TokenSequence) -> tuple[list[int], list[int]]:
    """Return (ids, loss mask) of TRL's completion: all tokens after the first prompt."""
    start = response_start(sequence)
    return list(sequence.ids[start:]), list(sequence.mask[start:])


def turn_ratios(trainer: Any, rows: Sequence[Row], batch: Mapping[str, Any]) -> Any:
    """Return the importance ratio of trainer and vLLM, one per turn, on the tokens of the turn.

    TRL takes the product over all tokens of a sequence; this is the product over those of a turn.
    TRL's bounds apply to it: `vllm_importance_sampling_mode` decides whether a ratio beyond them is
    cut off or set to 0.
    """
    trained = batch["completion_mask"] * batch["tool_mask"]
    logs = (batch["old_per_token_logps"] - batch["sampling_per_token_logps"]) * trained
    for i, row in enumerate(rows):
        start = response_start(row.sequence)
        for _, begin, end in row.sequence.spans:
            logs[i, begin - start : end - start] = logs[i, begin - start : end - start].sum()
    ratios, low = logs.exp(), trainer.vllm_importance_sampling_clip_min or 0.0
    high = trainer.vllm_importance_sampling_clip_max or math.inf
    if trainer.vllm_importance_sampling_mode == "sequence_truncate":
        return ratios.clamp(low, high)
    return ratios * ((ratios >= low) & (ratios <= high))


def episode_return(
    prompts: Any, completions: Any, gem_row: Sequence[Row], log_metric: Any = None, **_: Any
) -> list[float | None]:
    """TRL's reward function: the undiscounted return of each episode, None if it failed.

    Only the first row of an episode gets it. Logs the metrics of all ranks' episodes.
    """
    if log_metric is not None:
        from accelerate.utils import gather_object

        own = BatchMetrics.of([row.episode for row in gem_row if row.episode is not None])
        # gather them here: TRL 1.10 hangs if its ranks log different names
        for name, value in BatchMetrics.total(gather_object([own])).means().items():
            log_metric(f"gem/{name}", value)
    return [None if row.episode is None else row.episode.total_reward for row in gem_row]
