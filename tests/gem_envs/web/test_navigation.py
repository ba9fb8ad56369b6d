"""Tests of web navigation, with a real Chromium."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
from cheaters import CHEATERS, Cheater

from gem_check.transcripts import transcripts, transcripts_elsewhere
from gem_core import list_envs, make, run_batch, tasks_for
from gem_core.errors import ConfigError, MissingDependencyError, OptionError
from gem_core.policies.players import ExpertPlayer, RandomPlayer
from gem_envs.agents import ids as agents
from gem_envs.web import browser
from gem_envs.web.map import Map
from gem_envs.web.navigation import WebNavigation
from gem_envs.web.several import SITES, Several, site_class
from gem_envs.web.site import Site

IDS = list_envs("web:*")


NAMES = (*SITES, "several")


def site_of(name: str) -> type[Site]:
    return Several if name == "several" else site_class(name)


@pytest.fixture(scope="module")
def env() -> Iterator[WebNavigation]:
    """Share one tab between the tests: opening one takes longer than most tasks."""
    env = WebNavigation(max_turns=40)
    yield env
    env.close()


def test_every_site_has_an_id() -> None:
    assert list(agents.SITES) == list(NAMES)
    assert sorted(IDS) == sorted(f"web:{name}-v0" for name in ("Any", "Several", *SITES.values()))


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name in NAMES for kind in site_of(name).kinds]
)
def test_expert_solves_every_kind_of_task(env: WebNavigation, name: str, kind: str) -> None:
    env.reset(seed=random.Random(kind).randrange(1000), options={"site": name, "task": kind})
    for action in env.expert():
        observation, reward, terminated, _, info = env.step(action)
    assert (reward, terminated, info["success"]) == (1.0, True, True), observation
    assert env.turn <= env.max_turns


@pytest.mark.parametrize("name", NAMES)
def test_every_seed_draws_a_task_that_is_not_solved_yet(name: str) -> None:
    """Draw a thousand tasks without a browser; only questions start in their goal state."""
    site_class = site_of(name)
    for seed in range(250):
        for kind in site_class.kinds:
            site = site_class(random.Random(seed))
            task = site.draw(kind)
            assert task.kind == kind and task.plan[-1][0] == "stop"
            assert (task.answer is not None) == (site.state == task.goal)


def test_map_shows_the_shortest_route() -> None:
    for seed in range(20):
        site = Map(random.Random(seed))
        for start in site.kind_of:
            lengths = {start: 0.0}  # Bellman-Ford: relax all roads until nothing changes
            for _ in site.kind_of:
                for a, roads in site.roads.items():
                    for b, road in roads.items():
                        if a in lengths:
                            lengths[b] = min(lengths.get(b, 99.0), lengths[a] + road)
            for goal, length in lengths.items():
                assert site._route(start, goal)[1] == pytest.approx(length)


def test_task_across_sites_is_paid_only_if_nothing_else_changed(env: WebNavigation) -> None:
    def final_reward(*before_stop: str, send: bool = True) -> float:
        env.reset(seed=3, options={"site": "several", "task": "two_answers"})
        last = len(env.task.plan)
        for number, action in enumerate(env.expert(), 1):
            if number == last:
                for other in before_stop:
                    env.step(other)
            if send or number != last - 1:
                reward = env.step(action)[1]
        return reward

    assert final_reward() == 1.0
    assert final_reward("goto [/wiki]", "goto [/shop/cart]") == 1.0
    assert final_reward(send=False) == 0.0
    assert final_reward("goto [/repository/tide-clock]", "click [7]") == 0.0
    assert env.site.state["repository"]["tide-clock"]["starred"]


def test_reward_requires_the_answer_and_an_unchanged_state(env: WebNavigation) -> None:
    def final_reward(*actions: str) -> float:
        env.reset(seed=1, options={"site": "admin", "task": "count"})
        for action in actions:
            reward = env.step(action)[1]
        return reward

    env.reset(seed=1, options={"site": "admin", "task": "count"})
    stop = f"stop [{env.task.answer}]"
    assert final_reward(stop) == 1.0
    assert final_reward("stop [999]") == 0.0
    assert final_reward("stop") == 0.0
    assert final_reward("goto [/users/1]", "click [5]", stop) == 1.0  # checked but not saved
    assert final_reward("goto [/users/1]", "click [5]", "click [6]", stop) == 0.0  # saved
    assert final_reward("goto [/users/2]", "click [7]", stop) == 0.0  # deleted a user


def test_impossible_action_is_reported(env: WebNavigation) -> None:
    env.reset(seed=1, options={"site": "shop", "task": "buy"})
    for action, reason in (
        ("click [99]", "no element [99]"),
        ("click [0]", "no element [0]"),
        ("type [1] [x]", "is a link, not a field"),
        ("select [4] [x]", "is a textbox, not a list"),
        ("goto [https://example.com]", "a path of this site"),
        ("goto [//example.com]", "a path of this site"),
        ("back", "no page to go back to"),
        ("scroll [left]", "That is no action"),
        ("dance", "That is no action. The actions: click [N]"),
        ("click 3", "That is no action"),
    ):
        observation, reward, terminated, truncated, info = env.step(action)
        assert reason in observation and "Page: Welcome" in observation, action
        assert (reward, terminated, truncated, info) == (0.0, False, False, {"action_failed": True})
    assert "There is no such page" in env.step("goto [/nowhere]")[0]
    assert "Page: Welcome" in env.step("back")[0]


def test_long_page_can_be_scrolled() -> None:
    env = WebNavigation("admin", lines=10)
    try:
        env.reset(seed=1)
        first = env.step("goto [/users]")[0]
        second = env.step("scroll [down]")[0]
        assert "(lines 1 to 10 of 28; scroll to see the others)" in first
        assert "(lines 11 to 20 of 28" in second
        assert env.step("scroll [up]")[0] == first
    finally:
        env.close()


def test_page_scripts_run_and_dialogs_are_accepted(env: WebNavigation) -> None:
    env.reset(seed=1, options={"site": "admin", "task": "delete"})
    all_users = env.step("goto [/users]")[0]
    mail = env.site.state["users"]["5"]["mail"]
    filtered = env.step(f"type [4] [{mail}]")[0]  # the page's script hides the other rows
    assert all_users.count("link 'Edit'") == 24 and filtered.count("link 'Edit'") == 1
    env.step("click [5]")
    assert 'The page asked: "Delete' in env.step("click [7]")[0]
    assert "5" not in env.site.state["users"]


def test_reset_clears_the_site_and_the_history(env: WebNavigation) -> None:
    first = env.reset(seed=3, options={"site": "forum"})[0]
    env.step("goto [/new]")
    assert env.reset(seed=3, options={"site": "forum"})[0] == first
    assert "no page to go back to" in env.step("back")[0]


def test_environment_can_be_reset_after_close() -> None:
    env = WebNavigation("forum")
    try:
        first = env.reset(seed=3)[0]
        env.close()
        assert env.reset(seed=3)[0] == first
        assert "Page: " in env.step("goto [/new]")[0]
    finally:
        env.close()


@pytest.mark.parametrize("title", ["日本", "A?b", "50% off", "R&D #1 'x'"])
def test_wiki_page_of_any_title_can_be_created_linked_and_edited(
    env: WebNavigation, title: str
) -> None:
    env.reset(seed=0, options={"site": "wiki"})

    def act(verb: str, element: str, text: str = "") -> str:
        action = f"{verb} [{env.number_of(element, '')}]"
        return env.step(f"{action} [{text}]" if verb == "type" else action)[0]

    env.step("goto [/new]")
    act("type", "textbox 'Title", title)
    act("type", "textbox 'Text", f"See [[{title}]].")
    heading = f"# {title}\n"
    assert heading in act("click", "button 'Create'")
    assert heading in act("click", f"link '{title}'")
    assert f"# Editing {title}\n" in act("click", "link 'Edit this page'")
    act("type", "textbox 'Text", "new")
    assert f"{heading}new\n" in act("click", "button 'Save'")
    assert env.site.state["pages"][title] == "new" and env.site.state["edits"][title] == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHEATERS)
@pytest.mark.parametrize("id", IDS)
def test_cheater_earns_nothing(id: str, kind: str) -> None:
    episodes = run_batch(tasks_for(id, seeds=range(3)), Cheater(kind))
    assert [episode.total_reward for episode in episodes] == [0.0] * 3


@pytest.mark.slow
@pytest.mark.parametrize("id", IDS)
def test_random_player_earns_little(id: str) -> None:
    episodes = run_batch(tasks_for(id, seeds=range(8)), RandomPlayer())
    assert not [episode.failure for episode in episodes if episode.failed]
    assert sum(episode.total_reward or 0.0 for episode in episodes) / len(episodes) < 0.35


@pytest.mark.slow
def test_64_episodes_run_at_once() -> None:
    tasks = tasks_for("web:Any-v0", seeds=range(64))
    episodes = run_batch(tasks, ExpertPlayer(), concurrency=64)
    assert [(episode.failure, episode.total_reward) for episode in episodes] == [(None, 1.0)] * 64


def test_engine_plays_concurrent_episodes() -> None:
    episodes = run_batch(tasks_for("web:Any-v0", seeds=range(3)), ExpertPlayer())
    assert [episode.total_reward for episode in episodes] == [1.0] * 3


def test_pages_are_the_same_in_another_process() -> None:
    here = transcripts(["web:Any-v0"])
    assert transcripts_elsewhere(["web:Any-v0"], 1) == here


def test_error_names_the_missing_dependency(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"\.\[web\].*playwright"):
        make("web:Shop-v0")
    monkeypatch.undo()
    monkeypatch.setenv("GEM_CHROMIUM", "/no/such/browser")
    with pytest.raises(MissingDependencyError, match="GEM_CHROMIUM"):
        make("web:Shop-v0")
    monkeypatch.delenv("GEM_CHROMIUM")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", os.devnull)
    with pytest.raises(MissingDependencyError, match="apt-get install chromium"):
        make("web:Shop-v0")


def test_invalid_arguments_and_options_are_rejected(env: WebNavigation) -> None:
    with pytest.raises(ConfigError, match="site must be one of shop, forum, wiki, admin, map"):
        WebNavigation("bank")
    options: dict[str, Any]
    for options, message in (
        ({"site": "bank"}, "site must be"),
        ({"site": "shop", "task": "rob"}, "task must be one of buy"),
    ):
        with pytest.raises(OptionError, match=message):
            env.reset(seed=1, options=options)
