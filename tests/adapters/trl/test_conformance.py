"""The conformance table of TRL: every golden case holds, or is refused as the adapter states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from gem_core.conformance import CASES, Result, gradient_case, report, run
from gem_core.conformance.reference import compute_reference, distance, load_reference
from gem_trl.conformance import TRLHarness


@pytest.fixture(scope="module")
def harness() -> TRLHarness:
    return TRLHarness()


def test_the_table_holds(harness: TRLHarness, say: Callable[[str], None]) -> None:
    results = run(harness)
    say(report(harness, results))
    assert [r for r in results if r.outcome == "FAILED"] == []
    beyond = {c.name for c in CASES if c.needs & {"several_rows", "critic_values"}}
    assert {r.case for r in results if r.outcome == "refused"} == beyond
    ranks = {"two ranks against one", "a group over two ranks", "a rank with nothing but void episodes"}
    assert ranks | {"gradient against the reference"} <= {r.case for r in results}


def test_the_committed_gradient_is_the_reference_gradient() -> None:
    apart, norm = distance(compute_reference(gradient_case()), load_reference())
    assert norm > 1e-3
    assert apart <= 1e-5 * norm


class Forgetful(TRLHarness):
    """An adapter with one flaw, which the kit has to see."""

    def __init__(self, flaw: str) -> None:
        super().__init__()
        self.flaw = flaw

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
        return out, count


@pytest.mark.parametrize("flaw", ["discount", "mask", "ids", "advantage", "nan", "weights"])
def test_the_kit_sees_a_flaw(flaw: str) -> None:
    results: Mapping[str, Result] = {r.case: r for r in run(Forgetful(flaw), ranks=False)}
    seen = "gradient against the reference" if flaw == "weights" else "ragged turns"
    assert results[seen].outcome == "FAILED", f"a wrong {flaw} went unnoticed"
