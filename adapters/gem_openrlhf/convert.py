"""Convert: episodes in OpenRLHF's own format, and numbers per turn as numbers per token.

OpenRLHF keeps one reward per episode, but carries the label of a sample unchanged to the code that
computes advantages. Therefore the episode travels in the label, as an `EpisodeLabel`. A sample has
the first sequence of its episode; `all_sequences` adds the others before the trainer reads them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

from gem_core.training.sequences import TokenSequence, padding_sequence
from gem_core.types import Episode, FinishReason, StopReason

if TYPE_CHECKING:
    from gem_openrlhf.config import GemConfig

__all__ = ["EpisodeLabel", "all_sequences", "at_turn_starts", "per_token", "to_batch", "truncated"]

_NO_ROOM = frozenset({StopReason.CONTEXT_FULL, StopReason.TOKEN_LIMIT, StopReason.GENERATION_CUT})


@dataclass(frozen=True, slots=True)
class EpisodeLabel:
    """The label of a played sample: the dataset row's own label, the episode and its sequences."""

    label: str
    config: GemConfig
    episode: Episode
    sequences: tuple[TokenSequence, ...]
    cut_state: tuple[int, ...] = ()
    """The next prompt of a cut episode: a critic bootstraps from it."""
    number: int = 0
    """The sequence that the sample holds; -1 for padding, which trains nothing."""
    key: str = field(default_factory=lambda: uuid4().hex)
    """Identifies the episode. Its samples share it."""

    @property
    def sequence(self) -> TokenSequence:
        """The sequence that the sample holds."""
        if self.number >= 0:
            return self.sequences[self.number]
        first = self.sequences[0].ids[0]
        return padding_sequence((first,), first)


def to_batch(prompt: str, label: EpisodeLabel, *, logprobs: bool) -> dict[str, Any]:
    """Convert the sequence of a label to the result of an agent executor.

    `action_ranges`, the loss mask, has the trained turns only.
    """
    episode, sequence = label.episode, label.sequence
    padding = label.number < 0
    # OpenRLHF needs a number for a failed episode, too
    total = 0.0 if padding else float(episode.total_reward or 0.0)
    return {
        "prompt": prompt,
        "label": label,
        "images": None,
        "mm_train_inputs": None,
        "reward": total,  # for the log: gem computes advantages from the turn rewards
        # for dynamic filtering
        "scores": total if padding or episode.success is None else float(episode.success),
        "observation_tokens": list(sequence.ids),
        "action_ranges": [
            (start, end) for turn, start, end in sequence.spans if turn in sequence.trained
        ],
        "rollout_log_probs": list(sequence.logprobs or ()) if logprobs else None,
        "truncated": not padding and truncated(episode),
        "extra_logs": {},
    }


def all_sequences(samples: Sequence[Any], multiple: int, max_len: int) -> list[Any]:
    """Return one sample per sequence: OpenRLHF has one per episode up to here.

    Padding samples make their number a multiple of `multiple`. OpenRLHF drops an incomplete
    batch, or takes no optimizer step for it and adds its gradient to that of the next one.
    """
    labels = [label for sample in samples for label in sample.labels]
    if not all(isinstance(label, EpisodeLabel) for label in labels):
        return list(samples)
    complete: list[Any] = []
    for sample, label in zip(samples, labels, strict=True):
        complete.append(sample)
        complete += [_sample(sample, n, max_len) for n in range(1, len(label.sequences))]
    complete += [_sample(samples[0], -1, max_len) for _ in range(-len(complete) % multiple)]
    return complete


def per_token(sequence: TokenSequence, per_turn: Sequence[float]) -> list[float]:
    """Broadcast one number per turn to one per action position.

    Tokens that are not trained get 0. Position i belongs to token i + 1.
    """
    return sequence.broadcast(per_turn)[1:]


def at_turn_starts(sequence: TokenSequence, per_turn: Sequence[float]) -> list[float]:
    """Put one number per trained turn at the action position of its first token, NaN elsewhere."""
    numbers = [math.nan] * (len(sequence.ids) - 1)
    for turn, start, _ in sequence.spans:
        if turn in sequence.trained:
            numbers[start - 1] = per_turn[turn]
    return numbers


def truncated(episode: Episode) -> bool:
    """Return whether the tokens ran out: in the last turn, or with no room for another turn."""
    cut = bool(episode.turns) and episode.turns[-1].finish is FinishReason.LENGTH
    return cut or episode.stop in _NO_ROOM


def _sample(sample: Any, number: int, max_len: int) -> Any:
    """Return OpenRLHF's sample of another sequence of the same episode."""
    label = replace(sample.labels[0], number=number)
    response = to_batch(sample.prompts[0], label, logprobs=sample.rollout_log_probs is not None)
    # the method reads nothing from its generator
    generator = SamplesGenerator.__new__(SamplesGenerator)
    return generator._process_response_into_experience(response, max_len=max_len)
