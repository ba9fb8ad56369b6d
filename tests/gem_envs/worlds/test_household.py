"""Tests of the household world: ALFWorld's commands and task types."""

from __future__ import annotations

from typing import Any

import pytest

from gem_core.env.registry import make
from gem_core.errors import UnknownNameError


def household(task: str, seed: int = 0, **kwargs: Any) -> Any:
    env = make(f"household:{task}-v0", **kwargs).unwrapped
    env.reset(seed=seed)
    return env


def steps_of(env: Any) -> list[str]:
    """Return the expert's actions, played on a copy."""
    other = env.spawn()
    other.reset(seed=env.seed)
    actions = []
    for action in other.expert():
        actions.append(action)
        other.step(action)
    return actions


@pytest.mark.parametrize("task", ["CleanAndPlace", "HeatAndPlace", "CoolAndPlace"])
def test_thing_in_the_wrong_state_does_not_solve_the_task(task: str) -> None:
    env = household(task)
    actions = steps_of(env)
    for action in actions:
        if action.startswith(("clean", "heat", "cool")):
            continue
        _, reward, terminated, *_ = env.step(action)
        assert (reward, terminated) == (0.0, False)
    assert env.held is None  # it was put down


def test_two_things_must_lie_in_one_place() -> None:
    env = household("PickTwo", seed=1)
    actions = steps_of(env)
    last = [env.step(action) for action in actions]
    assert [result[1] for result in last] == [0.0] * (len(actions) - 1) + [1.0]
    assert last[-1][4]["success"]


def test_player_carries_one_thing_and_must_open_what_is_closed() -> None:
    env = household("PickAndPlace", seed=3)
    closed = next(p for p in env.furniture.values() if p.openable and p.things)
    thing = closed.things[0].name
    take = f"take {thing} from {closed.name}"
    assert env.step(take)[0] == "Nothing happens."  # it is far away
    assert "is closed" in env.step(f"go to {closed.name}")[0]
    assert env.step(take)[0] == "Nothing happens."
    assert thing in env.step(f"open {closed.name}")[0]
    assert env.step(take)[0] == f"You pick up the {thing} from the {closed.name}."
    assert env.step("inventory")[0] == f"You are carrying: a {thing}."
    other = next(p for p in env.furniture.values() if p.things and p.shows_things)
    env.step(f"go to {other.name}")
    assert env.step(f"take {other.things[0].name} from {other.name}")[0] == "Nothing happens."


def test_looking_needs_the_thing_in_hand_and_the_lamp_on() -> None:
    env = household("LookInLight", seed=2)
    *before, use = steps_of(env)
    for action in before:
        assert env.step(action)[1] == 0.0
    assert env.step(use)[1] == 1.0


def test_listed_actions_all_do_something() -> None:
    env = household("Any", seed=5, show_actions=True, max_turns=1000)
    for _ in range(40):
        action = env.sample_action()
        observation, *_ = env.step(action)
        assert not observation.startswith("Nothing happens")
        assert "AVAILABLE ACTIONS: go to" in observation
        if env.ended:
            break


def test_unknown_task_is_rejected() -> None:
    with pytest.raises(UnknownNameError, match="PickAndPlace"):
        make("household:Any-v0", task="PickAndPlac")
