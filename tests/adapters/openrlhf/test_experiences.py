"""The difference of the sampler's and the trainer's logprobs, from OpenRLHF's padded batches."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gem_core.adapter_kit.response_tensors import gap_of
from gem_core.training.metrics import logprob_gap
from gem_openrlhf.experiences import batch_logprob_gap


def experience(length: int, trained: int) -> Any:
    """Return two sequences with random logprobs; the first tokens of each are trained."""
    generator = torch.Generator().manual_seed(length)
    sampler, trainer = -torch.rand(2, 2, length, generator=generator)
    mask = torch.zeros(2, length, dtype=torch.long)
    mask[:, :trained] = 1
    sampler[:, trained:] = math.nan  # untrained tokens do not matter
    return SimpleNamespace(rollout_log_probs=sampler, action_log_probs=trainer, action_mask=mask)


@pytest.mark.parametrize("trained", [1, 24, 25, 26, 50, 1000])
def test_gap_of_tensors_is_the_gap_of_their_trained_tokens(trained: int) -> None:
    batch = [experience(trained + 3, trained), experience(trained + 9, trained)]
    sampler, trainer = (
        [number for e in batch for row in getattr(e, name) for number in row[:trained].tolist()]
        for name in ("rollout_log_probs", "action_log_probs")
    )
    assert len(sampler) == 4 * trained
    expected = logprob_gap(sampler, trainer)
    assert batch_logprob_gap(batch) == pytest.approx(expected, rel=1e-12)
    assert 0 < expected["logprob_gap"] <= expected["logprob_gap_p99"]


def test_gap_needs_both_logprobs_and_a_trained_token() -> None:
    row = torch.zeros(1, 3)
    assert gap_of(None, row, row) == gap_of(row, None, row) == gap_of(row, row, row) == {}
    without = experience(5, 2)
    without.rollout_log_probs = None
    assert batch_logprob_gap([experience(5, 2), without]) == {}


def test_gap_of_an_undefined_logprob_is_undefined() -> None:
    broken = torch.tensor([[0.0, math.nan, 0.0]])
    assert math.isnan(gap_of(broken, torch.zeros(1, 3), torch.ones(1, 3))["logprob_gap"])
