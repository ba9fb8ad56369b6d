"""Expensive test cases: a few always run, the others are marked slow (`tox -m slow`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

__all__ = ["few_of"]


def few_of(cases: Sequence[str], count: int) -> list[Any]:
    """Return the cases as test parameters; those after the first `count` are marked slow."""
    return [
        pytest.param(case, marks=[pytest.mark.slow] if i >= count else [])
        for i, case in enumerate(cases)
    ]
