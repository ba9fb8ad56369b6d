"""The conformance table of RL2: every case passes or is declared unsupported."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import rl2_on_cpu
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
from gem_conformance.reference import compute_reference, distance, load_reference

from gem_rl2.conformance import RL2Harness, ShardedGradientActor


@pytest.fixture(scope="module")
def harness() -> RL2Harness:
    return RL2Harness()


@pytest.mark.setting("Packing", "works")
@pytest.mark.setting("Failed episodes", "works")
@pytest.mark.setting("Token-level ratios", "works")
def test_conformance_table_passes(harness: RL2Harness, say: Callable[[str], None]) -> None:
    results = run(harness)
    say(report(harness, results))
    assert [r for r in results if r.outcome != "ok"] == [], "RL2 supports every case"
    ranks = {
        "two ranks against one",
        "a group over two ranks",
        "a rank with nothing but failed episodes",
    }
    assert ranks | {f"{c.name} against the reference" for c in GRADIENT_CASES} <= {
        r.case for r in results
    }


@pytest.mark.parametrize("case", GRADIENT_CASES, ids=lambda case: case.name)
def test_committed_gradient_equals_the_reference_gradient(case: Case) -> None:
    difference, norm = distance(compute_reference(case), load_reference(case))
    assert norm > 1e-3
    assert difference <= 1e-5 * norm


@pytest.mark.filterwarnings("ignore")  # of a CPU without bfloat16
def test_gradients_agree_in_bfloat16() -> None:
    harness = RL2Harness()
    harness.bfloat16 = True
    for case in GRADIENT_CASES:
        check_gradient(harness, case)


class OwnActor(RL2Harness):
    """The harness with RL2's own actor, which it has on a GPU."""

    bfloat16 = True

    def _actor(self, settings: Any) -> Any:
        return ShardedGradientActor(settings, True)


@pytest.mark.filterwarnings("ignore")  # of a FSDP with one rank
def test_gradients_of_rl2s_fsdp_actor_agree() -> None:
    with rl2_on_cpu.fsdp():
        for case in GRADIENT_CASES:
            check_gradient(OwnActor(), case)


class Flawed(RL2Harness):
    """RL2's batch with one flaw, which the kit must detect."""

    def __init__(self, flaw: str) -> None:
        super().__init__()
        self.flaw = flaw

    def train(self, case: Case) -> list[TrainedSequence]:
        return super().train(
            replace(case, gamma=case.gamma * 0.5) if self.flaw == "discount" else case
        )

    def _batch(self, run: Any) -> Any:
        tensors = super()._batch(run)
        if self.flaw == "mask":
            tensors["action_mask"] = torch.ones_like(tensors["action_mask"])
        if self.flaw == "ids":
            tensors["states"] = tensors["states"].roll(1, dims=1)
        if self.flaw == "advantage":
            tensors["advantages"] = tensors["advantages"] * (1 + 1e-4)
        if self.flaw == "nan":
            tensors["advantages"] = torch.where(
                tensors["advantages"] != 0, torch.nan, tensors["advantages"]
            )
        if self.flaw == "rewards":  # only the last turn's, as in RL2's own log
            tensors["rewards"] = tensors["rewards"] * tensors["eos_mask"]
        if self.flaw == "weights":
            lengths = tensors["action_mask"].sum(-1, keepdim=True)
            tensors["advantages"] = tensors["advantages"] / lengths
        if self.flaw == "logprobs":
            tensors["llm_logps"] = torch.where(
                tensors["action_mask"] == 0, -7.0, tensors["llm_logps"]
            )
        return tensors


@pytest.mark.parametrize(
    "flaw", ["", "discount", "mask", "ids", "advantage", "nan", "rewards", "weights", "logprobs"]
)
def test_conformance_detects_a_flaw(flaw: str) -> None:
    harness, case = Flawed(flaw), CASES[0]
    with pytest.raises(AssertionError) if flaw else nullcontext():
        if flaw == "weights":
            check_gradient(harness)
        else:
            check_sequences(harness, case, harness.train(case))
