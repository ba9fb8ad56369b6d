"""The conformance table of OpenRLHF: every golden case holds, or is refused as the adapter states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from openrlhf.models import aggregate_loss

from gem_core.adapter_kit.conformance import CASES, GRADIENT_CASES, Case, Result, report, run
from gem_openrlhf.conformance import OpenRLHFHarness

pytestmark = pytest.mark.usefixtures("ray_here")


@pytest.fixture(scope="module")
def harness() -> OpenRLHFHarness:
    return OpenRLHFHarness()


def test_the_table_holds(harness: OpenRLHFHarness, say: Callable[[str], None]) -> None:
    results = run(harness)
    say(report(harness, results))
    assert [r for r in results if r.outcome == "FAILED"] == []
    beyond = {c.name for c in CASES if c.needs & {"several_rows", "critic_values"}}
    assert {r.case for r in results if r.outcome == "refused"} == beyond
    ranks = {"two ranks against one", "a group over two ranks", "a rank with nothing but failed episodes"}
    assert ranks | {f"{c.name} against the reference" for c in GRADIENT_CASES} <= {r.case for r in results}


def case(name: str) -> Case:
    return next(c for c in CASES if c.name == name)


def test_an_update_with_nothing_to_train_is_zero(harness: OpenRLHFHarness) -> None:
    """OpenRLHF alone divides by the number of trained tokens: 0 / 0, which would be in every weight."""
    nothing = torch.zeros(1, 2)
    assert aggregate_loss(nothing, nothing, batch_num_tokens=torch.tensor(0.0)).isnan()
    found = harness.gradient(case("a whole batch failed"))
    assert found
    assert all(bool((g == 0).all()) for g in found.values())


def test_failed_episodes_do_not_change_the_gradient_of_the_others(harness: OpenRLHFHarness) -> None:
    with_failed, without = case("a crash after non-zero rewards"), case("ragged turns")
    assert [e for e in with_failed.episodes if not e.failed] == list(without.episodes)
    found, expected = harness.gradient(with_failed), harness.gradient(without)
    for name, want in expected.items():
        assert torch.allclose(found[name], want, rtol=1e-4, atol=1e-7), name


class Forgetful(OpenRLHFHarness):
    """An adapter with one flaw, which the kit has to see."""

    def __init__(self, flaw: str, ready: OpenRLHFHarness) -> None:
        super().__init__()
        self.flaw, self._groups = flaw, ready._groups

    def _experiences(self, case: Any, episodes: Any, group: Any, rows: int) -> list[Any]:
        if self.flaw == "discount":
            case = replace(case, gamma=case.gamma * 0.5)
        found = super()._experiences(case, episodes, group, rows)
        for experience in found:
            if self.flaw == "mask":
                experience.action_mask = torch.ones_like(experience.action_mask)
            if self.flaw == "ids":
                experience.sequences = experience.sequences.roll(1, dims=1)
            if self.flaw == "advantage":
                experience.advantages = experience.advantages * (1 + 1e-4)
            if self.flaw == "nan":
                experience.advantages = torch.where(experience.advantages != 0, torch.nan, experience.advantages)
            if self.flaw == "logprobs":
                experience.rollout_log_probs = experience.rollout_log_probs.roll(1, dims=1)
            if self.flaw == "logprobs of nobody":
                experience.rollout_log_probs = experience.rollout_log_probs.masked_fill(~experience.action_mask.bool(), -7.0)
            if self.flaw == "reward":
                experience.rewards = experience.rewards * 2
        return found


@pytest.mark.parametrize("flaw", ["discount", "mask", "ids", "advantage", "nan", "logprobs", "logprobs of nobody", "reward"])
def test_the_kit_sees_a_flaw(flaw: str, harness: OpenRLHFHarness) -> None:
    results: Mapping[str, Result] = {r.case: r for r in run(Forgetful(flaw, harness), ranks=False)}
    assert results["ragged turns"].outcome == "FAILED", f"a wrong {flaw} went unnoticed"
