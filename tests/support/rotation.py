"""Rotation: a few of many costly cases each day, so that all have their turn and no run takes long.

`GEM_ROTATION=all` takes them all, `GEM_ROTATION=20` those of the day with that number, to repeat a run; the number of today is in
the name of each test.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from typing import Any

import pytest

__all__ = ["todays"]


def todays(cases: Sequence[str], count: int) -> list[Any]:
    """`count` of the cases as parameters of a test, the next ones tomorrow."""
    asked = os.environ.get("GEM_ROTATION", "")
    if asked == "all":
        return list(cases)
    day = int(asked) if asked else datetime.datetime.now(datetime.timezone.utc).date().toordinal()
    chosen = [cases[(day * count + i) % len(cases)] for i in range(min(count, len(cases)))]
    return [pytest.param(case, id=f"{case}-day{day}") for case in chosen]
