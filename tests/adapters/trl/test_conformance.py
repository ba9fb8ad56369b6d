"""Conformance of TRL: every golden case passes, or is rejected as the adapter declares."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from gem_conformance import (
    CASES,
    GRADIENT_CASES,
    Case,
    TrainedSequence,
    report,
    run,
)
from gem_conformance.kit import check_gradient, check_sequences
from gem_conformance.played import PLAYED_CASES
from gem_conformance.reference import compute_reference, distance, load_reference

from gem_trl.conformance import TRLHarness


@pytest.fixture(scope="module")
def harness() -> TRLHarness:
    return TRLHarness()


@pytest.mark.setting("Failed episodes", "works")
@pytest.mark.setting("Token-level ratios", "works")
def test_conformance_table_passes(harness: TRLHarness, say: Callable[[str], None]) -> None:
    results = run(harness)
    say(report(harness, results))
    assert [r for r in results if r.outcome == "FAILED"] == []
    unsupported = {c.name for c in CASES if "critic_values" in c.needs}
    assert {r.case for r in results if r.outcome != "ok"} == unsupported
    ranks = {
        "two ranks against one",
        "a group over two ranks",
        "a rank with nothing but failed episodes",
    }
    gradients = {f"{c.name} against the reference" for c in GRADIENT_CASES}
    played = {f"played: {c.name}" for c in PLAYED_CASES}
    assert {c.name for c in CASES} | ranks | gradients | played == {r.case for r in results}


@pytest.mark.parametrize("case", GRADIENT_CASES, ids=lambda case: case.name)
def test_committed_gradient_equals_the_reference_gradient(case: Case) -> None:
    difference, norm = distance(compute_reference(case), load_reference(case))
    assert norm > 1e-3
    assert difference <= 1e-5 * norm


@pytest.mark.filterwarnings("ignore")  # of a CPU without bfloat16
def test_gradients_agree_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = TRLHarness()
    harness.bfloat16 = True
    for case in GRADIENT_CASES:
        check_gradient(harness, case)
    wrong = dict(harness.gradient(GRADIENT_CASES[0]))
    largest = max(wrong, key=lambda name: float(wrong[name].norm()))
    wrong[largest] = -wrong[largest]
    monkeypatch.setattr(harness, "gradient", lambda case: wrong)
    with pytest.raises(AssertionError, match="in bfloat16 the gradient has the cosine"):
        check_gradient(harness)


class FlawedHarness(TRLHarness):
    """A harness with one flaw, which the conformance kit must detect."""

    def __init__(self, flaw: str, harness: TRLHarness) -> None:
        super().__init__()
        self.flaw, self._trainer = flaw, harness._ready()

    def _batch(self, case: Any, episodes: Any) -> tuple[dict[str, Any], int]:
        if self.flaw == "discount":
            case = replace(case, gamma=case.gamma * 0.5)
        out, count = super()._batch(case, episodes)
        if self.flaw == "mask":
            out["tool_mask"] = torch.ones_like(out["tool_mask"])
        if self.flaw == "ids":
            out["completion_ids"] = out["completion_ids"].roll(1, dims=1)
        if self.flaw == "advantage":
            out["advantages"] = out["advantages"] * (1 + 1e-4)
        if self.flaw == "nan":
            out["advantages"] = torch.where(out["advantages"] != 0, torch.nan, out["advantages"])
        if self.flaw == "weights":
            out["num_items_in_batch"] = out["num_items_in_batch"] * 2
        if self.flaw == "masked turns counted":
            out["num_items_in_batch"] = torch.tensor(
                sum(len(t.action_ids) for e in episodes for t in e.turns if not e.failed)
            )
        if self.flaw == "padding sequences counted":
            trained = (out["completion_mask"] * out["tool_mask"]).sum(1)
            out["num_items_in_batch"] = trained.clamp(min=1).sum()
        if self.flaw == "no logprobs":
            del out["sampling_per_token_logps"]
        if self.flaw == "logprobs":
            out["sampling_per_token_logps"][out["tool_mask"] == 0] = -7.0
        return out, count

    def _sequences(self, out: Mapping[str, Any], count: int) -> list[TrainedSequence]:
        sequences = super()._sequences(out, count)
        # a reward function that returns None for the first episode and a wrong reward for others
        if self.flaw == "totals":
            return [
                replace(sequence, total=math.nan if i == 0 else -9.0)
                for i, sequence in enumerate(sequences)
            ]
        return sequences


@pytest.mark.parametrize(
    "flaw",
    ["discount", "mask", "ids", "advantage", "nan", "weights", "no logprobs", "logprobs", "totals"],
)
def test_conformance_detects_a_flaw(flaw: str, harness: TRLHarness) -> None:
    flawed = FlawedHarness(flaw, harness)
    if flaw == "weights":
        with pytest.raises(AssertionError):
            check_gradient(flawed, GRADIENT_CASES[0])
        return
    sequences = flawed.train(CASES[0])
    with pytest.raises(AssertionError):
        check_sequences(flawed, CASES[0], sequences)


@pytest.mark.parametrize("flaw", ["masked turns counted", "padding sequences counted"])
def test_conformance_detects_a_loss_divided_by_untrained_tokens(
    flaw: str, harness: TRLHarness
) -> None:
    flawed, (plain, gaps) = FlawedHarness(flaw, harness), GRADIENT_CASES[:2]
    check_gradient(flawed, plain)
    check_sequences(flawed, gaps, flawed.train(gaps))
    with pytest.raises(AssertionError, match="away from the reference"):
        check_gradient(flawed, gaps)


def test_conformance_detects_sequence_level_ratios(
    harness: TRLHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness._ready(), "importance_sampling_level", "sequence")
    flawed, opposite = harness, GRADIENT_CASES[2]
    check_sequences(flawed, opposite, flawed.train(opposite))
    _, norm = distance({}, flawed.gradient(opposite))
    assert norm < 1e-6 * distance({}, load_reference(opposite))[1]
    with pytest.raises(AssertionError, match="away from the reference"):
        check_gradient(flawed, opposite)


@pytest.mark.parametrize(
    "loss_type", ["dapo", "grpo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo"]
)
def test_every_loss_trains_opposite_turns_in_the_direction_of_the_reference(
    harness: TRLHarness, monkeypatch: pytest.MonkeyPatch, loss_type: str
) -> None:
    """All turns have the same length, so the weights of the losses differ by a factor only."""
    monkeypatch.setattr(harness._ready(), "loss_type", loss_type)
    gradient = harness.gradient(GRADIENT_CASES[2])
    reference = load_reference(GRADIENT_CASES[2])
    factor = distance({}, gradient)[1] / distance({}, reference)[1]
    difference, norm = distance(gradient, reference, factor)
    assert difference <= 1e-4 * norm
