"""Response tensors: numbers per response token in a padded batch, and as lists without padding.

`mask` is 1 on the tokens of each response, wherever the trainer pads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gem_core.training.metrics import logprob_gap

__all__ = ["gap_of", "read_responses", "write_responses"]


def read_responses(tensor: Any, mask: Any) -> list[list[Any]]:
    """Return the numbers of each response, without padding."""
    return [row[own].tolist() for row, own in zip(tensor, mask.bool())]


def write_responses(rows: Sequence[Sequence[float]], mask: Any) -> Any:
    """Return a tensor of the mask's shape with the rows at the start of the responses, else 0."""
    tensor = mask.float() * 0.0
    for target, own, row in zip(tensor, mask.bool(), rows):
        target[own.nonzero()[: len(row), 0]] = tensor.new_tensor(row)
    return tensor


def gap_of(sampler: Any, trainer: Any, loss_mask: Any) -> dict[str, float]:
    """Return `logprob_gap` of two tensors over the trained tokens; {} if one of them is None."""
    if sampler is None or trainer is None:
        return {}
    trained = loss_mask.bool()
    return logprob_gap(sampler[trained].tolist(), trainer[trained].tolist())
