"""Conformance: golden episodes pushed through an adapter into the real framework, and checked against the invariants.

Run it for an installed framework with `gem-rl conformance NAME`. An adapter supplies a `Harness`; everything else is here:
the episodes (`golden`), the checks and the table (`kit`), and gradients in plain torch (`reference`).
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
