"""Response tensors: numbers per response token in a padded batch, and as lists without padding.

`mask` is 1 on the tokens of each response, wherever the trainer pads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    """Return `logprob_gap` of two tensors over the trained tokens; {} if one of them is None.

    An update may train millions of tokens, too many for a Python list.
    """
    if sampler is None or trainer is None:
        return {}
    trained = loss_mask.bool()
    gaps = (sampler[trained].cpu().double() - trainer[trained].cpu().double()).abs()
    if not len(gaps):
        return {}
    return {
        "logprob_gap": float(gaps.mean()),
        # kthvalue counts from 1
        "logprob_gap_p99": float(gaps.kthvalue(min(int(0.99 * len(gaps)) + 1, len(gaps))).values),
    }
