"""The horizon schedule of ScalingInter-RL, as a pure function of the step."""

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
def test_the_horizon_grows_every_so_many_updates_and_then_stays(step: int, turns: int) -> None:
    assert HorizonSchedule((10, 20, 30), every=100)(step) == turns


def test_a_resumed_run_goes_on_where_it_would_have_been() -> None:
    """The original counts calls, so that a run resumed at step 150 starts its stages anew or skips one."""
    straight = [HorizonSchedule((4, 7, 10), every=3)(step) for step in range(12)]
    resumed = pickle.loads(pickle.dumps(HorizonSchedule((4, 7, 10), every=3)))
    assert [resumed(step) for step in range(5, 12)] == straight[5:]
    assert [resumed(5), resumed(0), resumed(5)] == [7, 4, 7], "asking changes nothing"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (10, HorizonSchedule((10,))),
        ("10", HorizonSchedule((10,))),
        ([4, 7, 10], HorizonSchedule((4, 7, 10), 100)),
        ("4,7,10@80", HorizonSchedule((4, 7, 10), 80)),
        (" 4, 7 @ 80 ", HorizonSchedule((4, 7), 80)),
        ({"rounds": [4, 7, 10], "every": 80}, HorizonSchedule((4, 7, 10), 80)),
        ({"rounds": 5}, HorizonSchedule((5,))),
        (HorizonSchedule((3,)), HorizonSchedule((3,))),
        (None, None),
    ],
)
def test_a_schedule_is_read_from_what_a_configuration_holds(
    given: Any, wanted: HorizonSchedule | None
) -> None:
    assert HorizonSchedule.parse(given) == wanted


@pytest.mark.parametrize(
    "given",
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
    ],
)
def test_a_schedule_that_means_nothing_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError):
        HorizonSchedule.parse(given)


def test_a_step_before_the_first_is_refused() -> None:
    with pytest.raises(ConfigError, match="from 0"):
        HorizonSchedule((4,))(-1)
