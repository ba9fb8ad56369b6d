"""RL2's settings of the model: the gradient stays the reference gradient."""

from __future__ import annotations

from pathlib import Path

import pytest
from triton_on_cpu import run_liger_program


@pytest.mark.setting("Liger", "works")
@pytest.mark.long
def test_liger_layers_keep_the_gradient() -> None:
    """Liger's fused loss needs labels, which RL2 does not pass; its layers stay."""
    run_liger_program(Path(__file__).with_name("liger_gradient.py"))
