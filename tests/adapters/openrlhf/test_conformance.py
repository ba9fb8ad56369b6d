"""Conformance of OpenRLHF: every golden case passes, or is rejected as the adapter declares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from gem_conformance import CASES, GRADIENT_CASES, Case, report, run
from gem_conformance.kit import check_gradient, check_sequences
from openrlhf.models import PolicyLoss, aggregate_loss

from gem_openrlhf.conformance import OpenRLHFHarness

pytestmark = pytest.mark.usefixtures("ray_here")


@pytest.fixture(scope="module")
def harness() -> OpenRLHFHarness:
    return OpenRLHFHarness()


@pytest.mark.setting("Failed episodes", "works")
@pytest.mark.setting("Token-level ratios", "works")
def test_conformance_table_passes(harness: OpenRLHFHarness, say: Callable[[str], None]) -> None:
    results = run(harness)
    say(report(harness, results))
    assert [r for r in results if r.outcome != "ok"] == [], "OpenRLHF supports every case"
    ranks = {
        "two ranks against one",
        "a group over two ranks",
        "a rank with nothing but failed episodes",
    }
    assert ranks | {f"{c.name} against the reference" for c in GRADIENT_CASES} <= {
        r.case for r in results
    }


@pytest.mark.filterwarnings("ignore")  # of a CPU without bfloat16
def test_gradients_agree_in_bfloat16() -> None:
    harness = OpenRLHFHarness()
    harness.bfloat16 = True
    try:
        for gradient_case in GRADIENT_CASES:
            check_gradient(harness, gradient_case)
    finally:
        harness.close()


def case(name: str) -> Case:
    return next(c for c in CASES if c.name == name)


def test_no_gradient_without_trained_tokens(harness: OpenRLHFHarness) -> None:
    """OpenRLHF's own loss divides by the number of trained tokens: 0 / 0 is NaN in every weight."""
    zeros = torch.zeros(1, 2)
    assert aggregate_loss(zeros, zeros, batch_num_tokens=torch.tensor(0.0)).isnan()
    assert harness.gradient(case("ragged turns"))
    assert not harness.gradient(case("a whole batch failed")), "gem computes none"


def test_failed_episodes_do_not_change_the_gradient(harness: OpenRLHFHarness) -> None:
    with_failed, without = case("a crash after non-zero rewards"), case("ragged turns")
    assert [e for e in with_failed.episodes if not e.failed] == list(without.episodes)
    gradient, expected = harness.gradient(with_failed), harness.gradient(without)
    for name, value in expected.items():
        assert torch.allclose(gradient[name], value, rtol=1e-4, atol=1e-7), name


class FlawedHarness(OpenRLHFHarness):
    """A harness with one flaw, which the conformance kit must detect."""

    def __init__(self, flaw: str, harness: OpenRLHFHarness) -> None:
        super().__init__()
        self.flaw, self._groups = flaw, harness._groups

    def _experiences(self, case: Any, episodes: Any, group: Any, micro_batch: int) -> list[Any]:
        if self.flaw == "discount":
            case = replace(case, gamma=case.gamma * 0.5)
        experiences = super()._experiences(case, episodes, group, micro_batch)
        for experience in experiences:
            if self.flaw == "mask":
                experience.action_mask = torch.ones_like(experience.action_mask)
            if self.flaw == "ids":
                experience.sequences = experience.sequences.roll(1, dims=1)
            if self.flaw == "advantage":
                experience.advantages = experience.advantages * (1 + 1e-4)
            if self.flaw == "nan":
                experience.advantages = torch.where(
                    experience.advantages != 0, torch.nan, experience.advantages
                )
            if self.flaw == "logprobs":
                experience.rollout_log_probs = experience.rollout_log_probs.roll(1, dims=1)
            if self.flaw == "logprobs of observations":
                experience.rollout_log_probs = experience.rollout_log_probs.masked_fill(
                    ~experience.action_mask.bool(), -7.0
                )
            if self.flaw == "reward":
                experience.rewards = experience.rewards * 2
        return experiences


@pytest.mark.parametrize(
    "flaw",
    [
        "discount",
        "mask",
        "ids",
        "advantage",
        "nan",
        "logprobs",
        "logprobs of observations",
        "reward",
    ],
)
def test_conformance_detects_a_flaw(flaw: str, harness: OpenRLHFHarness) -> None:
    ragged = case("ragged turns")
    check_sequences(harness, ragged, harness.train(ragged))
    flawed = FlawedHarness(flaw, harness)
    sequences = flawed.train(ragged)
    with pytest.raises(AssertionError):
        check_sequences(flawed, ragged, sequences)


@pytest.mark.parametrize(("loss", "sizes"), [("ppo", {0.125}), ("gspo", {0.0})])
def test_gspo_cancels_opposite_turns(loss: str, sizes: set[float]) -> None:
    """`check_settings` rejects gspo for this reason: its gradient is the mean of the turns'."""
    logprobs = torch.zeros(1, 8, requires_grad=True)
    advantages = torch.tensor([[1.0] * 4 + [-1.0] * 4])
    policy_loss = PolicyLoss(policy_loss_type=loss)
    policy_loss(logprobs, torch.zeros(1, 8), advantages, torch.ones(1, 8))[0].backward()
    assert logprobs.grad is not None
    assert set(logprobs.grad.abs().flatten().tolist()) == sizes
