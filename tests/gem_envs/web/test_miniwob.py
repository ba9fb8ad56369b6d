"""Tests of MiniWoB++ in a real Chromium."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from cheaters import CHEATERS, Cheater
from costly import few_of

from gem_core import run_batch, tasks_for
from gem_core.env.registry import make
from gem_core.errors import ConfigError
from gem_core.policies.players import ExpertPlayer
from gem_envs.web.ids import MINIWOB_TASKS
from gem_envs.web.miniwob import SOLVERS, MiniWoB


def test_every_id_has_a_solver() -> None:
    assert set(SOLVERS) == set(MINIWOB_TASKS)


@pytest.mark.parametrize("task", few_of(tuple(MINIWOB_TASKS), 3))
def test_expert_solves_the_task(task: str) -> None:
    episodes = run_batch(tasks_for(f"miniwob:{task}", seeds=range(4)), ExpertPlayer())
    assert [episode.total_reward for episode in episodes] == [1.0] * 4


# The page of focus-text has one element, so any text with `click [1]` in it is right.
@pytest.mark.slow
@pytest.mark.parametrize("kind", CHEATERS)
@pytest.mark.parametrize("task", [task for task in MINIWOB_TASKS if task != "focus-text"])
def test_cheater_earns_nothing(task: str, kind: str) -> None:
    (episode,) = run_batch(tasks_for(f"miniwob:{task}", seeds=[0]), Cheater(kind))
    assert episode.total_reward == 0.0


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


def test_unknown_page_is_rejected_and_others_have_no_expert() -> None:
    with pytest.raises(ConfigError, match="click-button"):
        MiniWoB("click-buton")
    with pytest.raises(ConfigError):
        MiniWoB("../core/core")
    assert MiniWoB("click-pie").expert is None
