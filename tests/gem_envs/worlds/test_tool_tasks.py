"""Tests of the tool tasks: calls, answers, and goals that change data."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gem_core.env.registry import make
from gem_envs.worlds.tools.task import is_answer
from gem_envs.worlds.tools.toolbox import CallError, parse_call, write_call

WORLDS = ("Weather", "Movie", "Academia", "Sheet", "Todo")


def tool(name: str, seed: int = 0) -> Any:
    env = make(f"tool:{name}-v0").unwrapped
    env.reset(seed=seed)
    return env


@pytest.mark.parametrize("name", WORLDS)
def test_expert_stays_within_the_turns_for_many_seeds(name: str) -> None:
    env = tool(name)
    for seed in range(40):
        env.reset(seed=seed)
        assert len(list(env.expert())) <= env.max_turns


@pytest.mark.parametrize("name", WORLDS)
def test_every_goal_is_drawn(name: str) -> None:
    env = tool(name)
    first_words = set()
    for seed in range(20):
        _, info = env.reset(seed=seed)
        first_words.add(" ".join(info["goal"].split()[:2]))
    assert len(first_words) >= 3


def test_react_completion_reaches_the_function() -> None:
    env = make("tool:Weather-v0")
    env.reset(seed=0)
    observation, *_ = env.step(
        "Thought: where is the user?\nAction: get_user_current_location with Action Input: {}"
    )
    assert observation == env.unwrapped.toolbox.here.name  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "finish",
        "finish with Action Input: 3",
        "finish with Action Input: {1: 2}",
        "finish with Action Input: " + "[" * 3000,
        "finish with Action Input: __import__('os').getcwd()",
    ],
)
def test_text_that_is_not_a_call_is_rejected(text: str) -> None:
    with pytest.raises(CallError):
        parse_call(text)


def test_call_may_be_python_or_json() -> None:
    assert parse_call("f with Action Input: {'a': 'b'}") == ("f", {"a": "b"})
    assert parse_call('f with Action Input: {"a": true}') == ("f", {"a": True})
    assert parse_call(write_call("f", {"name": "é"})) == ("f", {"name": "é"})


def test_arguments_have_no_lone_surrogates() -> None:
    for body in (r'{"\ud83d": ["\ud83d\ude00 \ud83d"]}', r"{'\ud83d': ('\ud83d\ude00 \ud83d',)}"):
        _, arguments = parse_call(f"f with Action Input: {body}")
        assert arguments == {"\ufffd": ["\U0001f600 \ufffd"]}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("0x" + "f" * 3700, "an integer must be between"),
        (f"[[-{10**15 + 1}]]", "an integer must be between"),
        ("[" * 30 + "]" * 30, "nested over 20 levels"),
        ("{1, 2}", "must be JSON, which has no such set"),
        ("{(1, 2): 3}", "keys of a JSON object must be strings"),
    ],
)
def test_value_that_cannot_be_shown_is_explained(value: str, message: str) -> None:
    with pytest.raises(CallError, match=message):
        parse_call(f"f with Action Input: {{'a': {value}}}")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("get_weather", {}), "there is no function 'get_weather'"),
        (("get_elevation", {"latitude": 1}), "takes (latitude: number, longitude: number)"),
        (("get_elevation", {"latitude": "x", "longitude": 1}), "latitude must be of the type"),
        (("get_latitude_longitude", {"name": "Atlantis"}), "there is no city"),
        (
            (
                "get_historical_rain",
                {"latitude": 0, "longitude": 0, "start_date": "a", "end_date": "b"},
            ),
            "no weather station",
        ),
    ],
)
def test_wrong_call_is_explained_and_costs_a_turn(
    call: tuple[str, dict[str, Any]], message: str
) -> None:
    env = tool("Weather")
    observation, reward, terminated, _, info = env.step(write_call(*call))
    assert message in observation and info["call_error"]
    assert (reward, terminated, env.turn) == (0.0, False, 1)


@pytest.mark.parametrize(
    ("given", "gold", "right"),
    [
        ("622", 622, True),
        (621.995, 622, True),
        ("622 m", 622, False),
        (True, 1, False),
        ("nan", 1, False),
        ("  ada Corsen. ", "Ada Corsen", True),
        (["b", "A"], ["a", "B"], True),
        ("a, b", ["a", "b"], True),
        ({"a": 1}, "a", False),
        ([], ["a"], False),
    ],
)
def test_answers_are_compared_by_value(given: Any, gold: Any, right: bool) -> None:
    assert is_answer(given, gold) == right


def finished_with(env: Any, *extra: tuple[str, dict[str, Any]]) -> float:
    """Return the reward of the expert's calls, then the extra calls, then finish."""
    *calls, finish = env.expert()
    for call in [*calls, *[write_call(*call) for call in extra]]:
        assert not env.step(call)[0].startswith("Error")
    return float(env.step(finish)[1])


def reset_to(env: Any, words: str) -> None:
    """Reset to the first seed whose goal contains the words."""
    for seed in range(200):
        env.reset(seed=seed)
        if words in env.goal.text:
            return
    raise AssertionError(f"no goal contains {words!r}")


def test_sheet_with_one_more_change_earns_nothing() -> None:
    env = tool("Sheet")
    reset_to(env, "sort the rows")
    assert finished_with(env) == 1.0
    reset_to(env, "sort the rows")
    assert finished_with(env, ("update_cell", {"position": "A1", "value": "x"})) == 0.0


def test_todo_with_one_more_change_earns_nothing() -> None:
    env = tool("Todo")
    reset_to(env, "Postpone")
    other = next(id for id, p in env.toolbox.projects.items() if not p["is_favorite"])
    extra = ("update_project", {"project_id": other, "is_favorite": True})
    assert finished_with(env, extra) == 0.0


def test_mistake_in_an_added_task_can_be_corrected() -> None:
    env = tool("Todo")
    reset_to(env, "Add the task")
    name, arguments = env.goal.calls[-1]
    rejected = write_call(name, {**arguments, "due_date": "tomorrow"})
    assert env.step(rejected)[0].startswith("Error")
    wrong = write_call(name, {**arguments, "priority": arguments["priority"] % 4 + 1})
    task_id = json.loads(env.step(wrong)[0])["id"]
    env.step(write_call("delete_task", {"task_id": task_id}))
    assert finished_with(env) == 1.0


@pytest.mark.parametrize("change", [{}, {"content": "x"}])
def test_todo_with_one_more_added_task_earns_nothing(change: dict[str, Any]) -> None:
    env = tool("Todo")
    reset_to(env, "Add the task")
    name, arguments = env.goal.calls[-1]
    assert finished_with(env, (name, {**arguments, **change})) == 0.0


def test_finishing_at_once_does_not_solve_a_change() -> None:
    env = tool("Todo")
    reset_to(env, "Mark the task")
    assert env.step(write_call("finish", {"answer": "done"}))[1] == 0.0


def test_random_player_calls_functions_with_texts_it_has_seen() -> None:
    env = tool("Movie")
    names, answered = set(), 0
    for seed in range(40):
        env.reset(seed=seed)
        over = False
        while not over:
            name, arguments = parse_call(env.sample_action())
            names.add(name)
            assert all(a in env.seen for a in arguments.values() if isinstance(a, str))
            observation, _, terminated, truncated, _ = env.step(write_call(name, arguments))
            over = terminated or truncated
            answered += name != "finish" and not observation.startswith(("Error", "[]"))
    assert names == {*env.toolbox.declared, "finish"}
    assert answered
