"""Conformance kit: runs golden episodes through an adapter's framework and checks the invariants.

Run it with `gem-rl conformance NAME`. The adapter provides a `Harness`; this package has the
episodes (`golden`), the checks and the table (`kit`), and the reference gradients (`reference`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gem_conformance.golden import CASES, GRADIENT_CASES, Case
from gem_conformance.harness import Harness, TrainedSequence
from gem_conformance.kit import Result, report, run
from gem_core.plugins.hookspecs import hookimpl

__all__ = [
    "CASES",
    "GRADIENT_CASES",
    "Case",
    "Harness",
    "Result",
    "TrainedSequence",
    "register_commands",
    "report",
    "run",
]


@hookimpl
def register_commands(register: Callable[..., Any]) -> None:
    """Register `gem-rl conformance`."""
    register("conformance", "gem_conformance.cli")
