"""Costly cases: a few run always, the others are marked slow and run with `tox -m slow`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

__all__ = ["few_of"]


def few_of(cases: Sequence[str], count: int) -> list[Any]:
    """All cases as parameters of a test, those after the first `count` marked slow."""
    return [
        pytest.param(case, marks=[pytest.mark.slow] if i >= count else [])
        for i, case in enumerate(cases)
    ]
