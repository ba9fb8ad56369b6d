"""Conformance kit: runs golden episodes through an adapter's framework and checks the invariants.

Run it with `gem-rl conformance NAME`. The adapter provides a `Harness`; this package has the
episodes (`golden`), the checks and the table (`kit`), and the reference gradients (`reference`).
"""

from __future__ import annotations

from gem_core.adapter_kit.conformance.golden import CASES, GRADIENT_CASES, Case
from gem_core.adapter_kit.conformance.harness import Harness, TrainedSequence
from gem_core.adapter_kit.conformance.kit import Result, report, run

__all__ = [
    "CASES",
    "GRADIENT_CASES",
    "Case",
    "Harness",
    "Result",
    "TrainedSequence",
    "report",
    "run",
]
