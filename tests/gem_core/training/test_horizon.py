"""Horizon schedule: a pure function of the step."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from gem_core import HorizonSchedule
from gem_core.errors import ConfigError


@pytest.mark.parametrize(
    ("step", "turns"),
    [
        (0, 10),
        (1, 10),
        (99, 10),
        (100, 20),
        (199, 20),
        (200, 30),
        (299, 30),
        (300, 30),
        (10**9, 30),
    ],
)
def test_the_horizon_grows_per_stage_and_stays_at_the_last(step: int, turns: int) -> None:
    assert HorizonSchedule((10, 20, 30), every=100)(step) == turns


def test_the_horizon_depends_only_on_the_step() -> None:
    """A resumed run continues its stages; the original counts calls and would not."""
    straight = [HorizonSchedule((4, 7, 10), every=3)(step) for step in range(12)]
    resumed = pickle.loads(pickle.dumps(HorizonSchedule((4, 7, 10), every=3)))
    assert [resumed(step) for step in range(5, 12)] == straight[5:]
    assert [resumed(5), resumed(0), resumed(5)] == [7, 4, 7], "calls have no side effect"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (10, HorizonSchedule((10,))),
        ("10", HorizonSchedule((10,))),
        ([4], HorizonSchedule((4,))),
        ("4,7,10@80", HorizonSchedule((4, 7, 10), 80)),
        (" 4, 7 @ 80 ", HorizonSchedule((4, 7), 80)),
        ({"rounds": [4, 7, 10], "every": 80}, HorizonSchedule((4, 7, 10), 80)),
        ({"rounds": 5}, HorizonSchedule((5,))),
        (HorizonSchedule((3,)), HorizonSchedule((3,))),
        (None, None),
    ],
)
def test_parse_accepts_every_form(value: Any, expected: HorizonSchedule | None) -> None:
    assert HorizonSchedule.parse(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        "",
        "ten",
        "4,,7",
        "4@",
        "0",
        [],
        [0],
        [4.5],
        [True],
        True,
        {"rounds": []},
        {"every": 3},
        {"rounds": [4], "evry": 3},
        "4@0",
        "4,7",
        [4, 7, 10],
        {"rounds": [4, 7]},
    ],
)
def test_parse_rejects_invalid_schedules(value: Any) -> None:
    with pytest.raises(ConfigError):
        HorizonSchedule.parse(value)


def test_a_negative_step_is_rejected() -> None:
    with pytest.raises(ConfigError, match="from 0"):
        HorizonSchedule((4,))(-1)
