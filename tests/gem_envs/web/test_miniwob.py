"""Tests of MiniWoB++ in a real Chromium."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from cheaters import CHEATERS, Cheater
from costly import few_of

from gem_core import run_batch, tasks_for
from gem_core.env.registry import make
from gem_core.errors import ConfigError
from gem_core.policies.players import ExpertPlayer, RandomPlayer
from gem_core.records.file import RecordWriter, read_episodes
from gem_envs.web.ids import MINIWOB_TASKS, TREE_TASKS
from gem_envs.web.miniwob import MiniWoB
from gem_envs.web.miniwob_solvers import SOLVERS

TASKS = ("click-tab-2", "choose-list", *MINIWOB_TASKS)
ONE_ELEMENT = {"click-dialog", "focus-text"}
"""Pages with one element, on which any click is right."""
FLOOR = 0.35
"""The highest mean reward of the random player."""
HIGH_FLOORS = {
    "click-button": "six elements, one of them right",
    "click-dialog": "one element",
    "click-dialog-2": "three buttons, one of them right",
    "click-option": "few options, and a second click replaces the first",
    "click-tab": "three tabs, one of them right",
    "click-test": "one button",
    "click-test-2": "two buttons, one of them right",
    "click-test-transfer": "two buttons, one of them right",
    "focus-text": "one element",
    "focus-text-2": "three fields, one of them right",
    "generate-number": "half of the numbers fit",
    "unicode-test": "few elements, one of them right",
}
"""Tasks on which the random player earns more, with the reason."""


def test_every_id_has_a_solver() -> None:
    assert set(SOLVERS) == set(MINIWOB_TASKS) >= TREE_TASKS
    assert len(MINIWOB_TASKS) == 39


@pytest.mark.parametrize("task", few_of(tuple(dict.fromkeys(TASKS)), 3))
def test_expert_solves_the_task(task: str) -> None:
    episodes = run_batch(tasks_for(f"miniwob:{task}", seeds=range(4)), ExpertPlayer())
    assert [episode.total_reward for episode in episodes] == [1.0] * 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHEATERS)
@pytest.mark.parametrize("task", [task for task in MINIWOB_TASKS if task not in ONE_ELEMENT])
def test_cheater_earns_at_most_a_fifth(task: str, kind: str) -> None:
    (episode,) = run_batch(tasks_for(f"miniwob:{task}", seeds=[0]), Cheater(kind))
    assert not episode.failed and (episode.total_reward or 0.0) <= 0.2


@pytest.mark.slow
@pytest.mark.parametrize("task", MINIWOB_TASKS)
def test_random_player_earns_little(task: str) -> None:
    episodes = run_batch(tasks_for(f"miniwob:{task}", seeds=range(16)), RandomPlayer())
    assert not [episode.failure for episode in episodes if episode.failed]
    mean = sum(episode.total_reward or 0.0 for episode in episodes) / len(episodes)
    assert mean < FLOOR or task in HIGH_FLOORS, mean


@pytest.mark.slow
def test_64_episodes_run_at_once() -> None:
    tasks = tasks_for("miniwob:click-test-2", seeds=range(64))
    episodes = run_batch(tasks, RandomPlayer(), concurrency=64)
    assert not [episode.failure for episode in episodes if episode.failed]


def test_seed_gives_the_page_and_a_wrong_click_ends_the_episode() -> None:
    env: Any = make("miniwob:click-button", screenshots=True).unwrapped
    first, info = env.reset(seed=1)
    assert 'Your task: Click on the "' in first
    assert str(env.page.parent) not in first
    assert base64.b64decode(info["screenshot"]).startswith(b"\x89PNG")
    observation, reward, terminated, *_ = env.step("fly")
    assert observation.startswith("That is not click") and not terminated
    (right,) = env.expert()
    wrong = next(n for n in env.numbers_of("button") if f"click [{n}]" != right)
    _, reward, terminated, _, info = env.step(f"click [{wrong}]")
    assert (reward, terminated, info["success"]) == (0.0, True, False)
    assert env.reset(seed=1)[0] == first
    assert env.reset(seed=2)[0] != first
    env.close()


def test_screenshots_are_kept_in_the_record(tmp_path: Path) -> None:
    tasks = tasks_for("miniwob:click-test-2", seeds=[1], env_kwargs={"screenshots": True})
    with RecordWriter(tmp_path / "episodes.jsonl") as record:
        for episode in run_batch(tasks, ExpertPlayer()):
            record.write(episode)
    (episode,) = read_episodes(tmp_path / "episodes.jsonl")
    assert base64.b64decode(episode.turns[0].info["screenshot"]).startswith(b"\x89PNG")


def test_accessibility_tree_numbers_every_node() -> None:
    env = MiniWoB("login-user", observation="accessibility")
    env.reset(seed=1)
    lines = env.outline.lines
    assert lines[-1] == f"[{len(lines)}] button 'Login'"
    assert "] textbox '' = ''" in lines[-2] and "StaticText 'Password'" in lines[-3]
    field, button = env.numbers_of("textbox")[0], env.numbers_of("button")[0]
    assert "textbox '' = 'Ada'" in env.step(f"type [{field}] [Ada]")[0]
    assert env.numbers_of("button") == [button]
    assert "not a field to type into" in env.step(f"type [{button}] [Ada]")[0]
    env.close()


def test_tree_shows_states_and_the_options_of_a_list() -> None:
    env = MiniWoB("choose-list", observation="accessibility")
    env.reset(seed=1)
    (number,) = env.numbers_of("combobox")
    options = env.outline.elements[number - 1].options
    assert options == ("Miguelita", "Arabela", "Koressa", "Barbara", "Isidora")
    assert f"[{number}] combobox '' = 'Barbara' of" in env.step(f"select [{number}] [Barbara]")[0]
    env.close()
    boxes = MiniWoB("click-checkboxes", observation="accessibility")
    boxes.reset(seed=1)
    number = boxes.numbers_of("checkbox")[0]
    assert f"[{number}] checkbox '3hIU' (on)" in boxes.step(f"click [{number}]")[0]
    boxes.close()


def test_obstacles_cost_a_turn_instead_of_time() -> None:
    env = MiniWoB("enter-date")
    env.reset(seed=1)
    assert "of the type date, which does not take this text" in env.step("type [1] [soon]")[0]
    assert "textbox '' = '2012-09-10'" in env.step("type [1] [2012-09-10]")[0]
    env.close()
    chosen = MiniWoB("choose-date-easy")
    chosen.reset(seed=1)
    assert "[1] cannot be changed" in chosen.step("type [1] [12/09/2016]")[0]
    chosen.close()


def test_unknown_arguments_are_rejected_and_other_pages_have_no_expert() -> None:
    with pytest.raises(ConfigError, match="click-button"):
        MiniWoB("click-buton")
    with pytest.raises(ConfigError):
        MiniWoB("../core/core")
    with pytest.raises(ConfigError, match="observation must be one of text, accessibility"):
        MiniWoB("click-button", observation="pixels")
    assert MiniWoB("click-pie").expert is None
    assert MiniWoB("click-button", observation="accessibility").expert is None
