"""Conformance of Tinker: every golden case passes, or is rejected as the adapter declares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from gem_conformance import CASES, GRADIENT_CASES, Case, report, run
from gem_conformance.kit import check_gradient
from tinker import TensorData

from gem_core.errors import BatchMismatchError
from gem_tinker import GemConfig
from gem_tinker.config import Loss
from gem_tinker.conformance import TinkerHarness
from gem_tinker.trainer import check_batch, put_advantages


@pytest.fixture(scope="module")
def harness() -> Iterator[TinkerHarness]:
    harness = TinkerHarness()
    yield harness
    harness.close()


@pytest.mark.setting("Importance correction", "works")
@pytest.mark.setting("Token-level ratios", "works")
def test_conformance_table_passes(harness: TinkerHarness, say: Callable[[str], None]) -> None:
    results = run(harness)
    say(report(harness, results))
    assert [r for r in results if r.outcome == "FAILED"] == []
    unsupported = {c.name for c in CASES if "critic_values" in c.needs}
    assert {r.case for r in results if r.outcome != "ok"} == unsupported


@pytest.mark.parametrize("loss", ["ppo", "cispo"])
@pytest.mark.parametrize("case", GRADIENT_CASES, ids=lambda case: case.name)
def test_other_losses_have_the_same_gradient(
    harness: TinkerHarness, case: Case, loss: Loss, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "loss", loss)
    check_gradient(harness, case)


@pytest.mark.parametrize("changed", ["model_input", "target_tokens", "advantages"])
def test_changed_batch_raises(changed: str) -> None:
    config = GemConfig("game:GuessTheNumber-v0-easy", max_turn_tokens=8)
    ((sequence, datum), *_), _ = put_advantages(config, CASES[0].episodes)
    check_batch([(sequence, datum)])
    if changed == "model_input":
        ids = datum.model_input.to_ints()
        wrong = replace(datum, model_input=datum.model_input.from_ints([*ids[:-1], ids[-1] + 1]))
    else:
        # the first target is a prompt token
        values = np.array(datum.loss_fn_inputs[changed].data)
        values[0] += 1
        tensor = TensorData(values, datum.loss_fn_inputs[changed].dtype)
        wrong = replace(datum, loss_fn_inputs={**datum.loss_fn_inputs, changed: tensor})
    with pytest.raises(BatchMismatchError, match="Datum 0 of the batch is not what was played"):
        check_batch([(sequence, wrong)])
