"""Expected values: what a golden case must give, from a second, independent implementation.

`scripts/conformance_expected.py` computes them without the code that adapters use, and writes
`expected.json`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gem_conformance.golden import Case
from gem_conformance.harness import TrainedSequence
from gem_core.errors import ConfigError

__all__ = ["ExpectedEpisode", "expected_of"]


@dataclass(frozen=True)
class ExpectedEpisode:
    """The expected values of one episode."""

    returns: Sequence[float]
    """The discounted return of each turn."""
    sequences: Sequence[TrainedSequence]
    """Its token sequences."""
    turns: Sequence[TrainedSequence]
    """Each turn with sampled tokens as a sequence of its own, for trainers that train turns."""


def expected_of(case: Case) -> list[ExpectedEpisode]:
    """Return the expected values of each episode of a golden case."""
    stored = _stored()
    if case.name not in stored:
        raise ConfigError(
            f"the case {case.name!r} has no expected values; add it to gem_conformance.golden and "
            "run scripts/conformance_expected.py"
        )
    return [
        ExpectedEpisode(
            entry["returns"],
            [TrainedSequence(**sequence) for sequence in entry["sequences"]],
            [TrainedSequence(**turn) for turn in entry["turns"]],
        )
        for entry in stored[case.name]
    ]


@cache
def _stored() -> dict[str, list[dict[str, Any]]]:
    path = Path(__file__).with_name("expected.json")
    stored: dict[str, list[dict[str, Any]]] = json.loads(path.read_text(encoding="utf-8"))
    return stored
