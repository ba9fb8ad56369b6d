"""Conformance of oat: every golden case passes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from gem_conformance import CASES, GRADIENT_CASES, report, run
from gem_conformance.kit import check_gradient, check_sequences
from gem_conformance.played import PLAYED_CASES

from gem_core.errors import ConfigError
from gem_oat.conformance import OatHarness


@pytest.fixture(scope="module")
def harness() -> OatHarness:
    harness = OatHarness()
    with warnings.catch_warnings():  # DeepSpeed warns when it starts
        warnings.simplefilter("ignore")
        for case in CASES:
            harness._learner(case)
    return harness


@pytest.mark.setting("Rewritten history", "works")
@pytest.mark.setting("Failed episodes", "works")
@pytest.mark.setting("Token-level ratios", "works")
def test_conformance_table_passes(harness: OatHarness, say: Callable[[str], None]) -> None:
    results = run(harness)
    say(report(harness, results))
    assert [r for r in results if r.outcome != "ok"] == []
    ranks = {
        "two ranks against one",
        "a group over two ranks",
        "a rank with nothing but failed episodes",
    }
    gradients = {f"{c.name} against the reference" for c in GRADIENT_CASES}
    played = {f"played: {c.name}" for c in PLAYED_CASES}
    assert {c.name for c in CASES} | ranks | gradients | played == {r.case for r in results}


@pytest.mark.filterwarnings("ignore")  # of DeepSpeed, and a CPU without bfloat16
def test_gradients_agree_in_bfloat16() -> None:
    harness = OatHarness()
    harness.bfloat16 = True
    for case in GRADIENT_CASES:
        check_gradient(harness, case)


def test_a_device_that_deepspeed_does_not_use_is_an_error() -> None:
    harness = OatHarness()
    harness.device = "cuda"
    with pytest.raises(ConfigError, match="DS_ACCELERATOR=cuda"):
        harness.train(CASES[0])


class FlawedHarness(OatHarness):
    """A harness with one flaw, which the conformance kit must detect."""

    flaw = ""

    def _update(self, case: Any, episodes: Any) -> dict[str, Any]:
        if self.flaw == "discount":
            case = replace(case, gamma=case.gamma * 0.5)
        data = super()._update(case, episodes)
        if self.flaw == "mask":
            data["loss_masks"] = [True] * len(data["loss_masks"])
        if self.flaw == "ids":
            data["input_ids"] = data["input_ids"].roll(1, dims=1)
        if self.flaw == "advantage":
            data["advantages"] = [a * (1 + 1e-4) for a in data["advantages"]]
        if self.flaw == "nan":
            data["advantages"] = [float("nan") if a else a for a in data["advantages"]]
        if self.flaw == "logprobs":
            data["action_logprobs"] = [[p - 1.0 for p in turn] for turn in data["action_logprobs"]]
        if self.flaw == "totals":
            data["rewards"] = [float("nan"), *[9.0] * (len(data["rewards"]) - 1)]
        return data

    def _loaded(self, data: dict[str, Any]) -> dict[str, Any]:
        if self.flaw == "weights":
            data["advantages"] = [2.0 * a for a in data["advantages"]]
        return data


@pytest.mark.parametrize(
    "flaw", ["discount", "mask", "ids", "advantage", "nan", "weights", "logprobs", "totals"]
)
def test_conformance_detects_a_flaw(flaw: str, harness: OatHarness) -> None:
    flawed = FlawedHarness()
    flawed.flaw, flawed._learners = flaw, harness._learners
    if flaw == "weights":
        with pytest.raises(AssertionError, match="gradient"):
            check_gradient(flawed)
        return
    case = next(c for c in CASES if c.name == "a masked middle turn")
    sequences = flawed.train(case)
    with pytest.raises(AssertionError, match="sequence"):
        check_sequences(flawed, case, sequences)
