"""OpenRLHF's settings of the model: the gradient stays the reference gradient."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from gem_conformance import GRADIENT_CASES, Case
from gem_conformance.kit import check_gradient
from ranks import PackedRank
from triton_on_cpu import run_liger_program

from gem_openrlhf.conformance import OpenRLHFHarness


@pytest.fixture(scope="module")
def packed(ray_here: None) -> Iterator[OpenRLHFHarness]:
    harness = OpenRLHFHarness(PackedRank)
    yield harness
    harness.close()


@pytest.mark.setting("Packing", "works")
@pytest.mark.parametrize("case", GRADIENT_CASES, ids=lambda case: case.name)
def test_packed_sequences_keep_the_gradient(case: Case, packed: OpenRLHFHarness) -> None:
    """Every turn's advantage reaches its own tokens when the sequences of a batch share a row."""
    check_gradient(packed, case)
    (sizes,) = ray.get(packed._groups[1].async_run_method("packed_sequences"))
    assert max(sizes) > 1, "several sequences in one row"


@pytest.mark.setting("Liger", "works")
@pytest.mark.long
def test_liger_layers_keep_the_gradient() -> None:
    """Liger's fused loss needs labels, which OpenRLHF does not pass; its layers stay."""
    run_liger_program(Path(__file__).with_name("liger_gradient.py"))
