"""Tests of the AgentGym scenarios: BabyAI, SciWorld, TextCraft and TextWorldExpress."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from babyai_experts import SEEDS, expert_for
from costly import few_of

from gem_core import run_batch, tasks_for
from gem_core.env.base import Env
from gem_core.env.registry import list_envs, make, spec
from gem_core.errors import (
    ConfigError,
    EnvDiedError,
    EnvError,
    MissingDependencyError,
    OptionError,
    UnknownNameError,
)
from gem_core.policies.players import RandomPlayer
from gem_envs.agentgym import java
from gem_envs.agentgym.crafting import Recipe, RecipeBook, recipe_book
from gem_envs.agentgym.ids import BABYAI_LEVELS, SCIWORLD_TASKS, TEXTWORLD_GAMES
from gem_envs.agentgym.java import JavaProgram
from gem_envs.agentgym.sciworld import SciWorld
from gem_envs.agentgym.textcraft import TextCraft
from gem_envs.agentgym.textworld import TextWorld

SCENARIOS = ("babyai:*", "sciworld:*", "textcraft:*", "textworld:*")


def play(env: Env, actions: Iterator[str]) -> tuple[float, dict[str, Any]]:
    """Play the actions from a reset environment; return the total reward and the last info.

    A wrapped environment gets them in the ReAct format, as a model would write them.
    """
    total = 0.0
    for action in actions:
        text = action if env is env.unwrapped else f"Thought: next.\nAction: {action}"
        _, reward, terminated, truncated, info = env.step(text)
        total += reward
        if terminated or truncated:
            return total, info
    raise AssertionError(f"the expert stopped before the end of the episode, at reward {total}")


# Ids.


def test_ids_match_the_packages() -> None:
    tasks = json.loads(
        resources.files("scienceworld").joinpath("tasks.json").read_text(encoding="utf-8")
    )
    assert list(SCIWORLD_TASKS) == [task["task_name"] for task in tasks]
    env = TextWorld("coin")
    assert list(TEXTWORLD_GAMES) == env.borrow().strings("getGameNames")
    env.close()
    assert [len(list_envs(pattern)) for pattern in SCENARIOS] == [40, 30, 5, 8]
    assert all(
        f"BabyAI-{level}-v{int(level == 'GoToObjS6')}" in gymnasium.registry
        for level in BABYAI_LEVELS
    )


def test_listing_ids_imports_no_package() -> None:
    code = (
        "import sys; from gem_core.env.registry import list_envs; "
        "packages = {'minigrid', 'gymnasium', 'numpy', 'py4j', 'textcraft'}; "
        "print(len(list_envs('sciworld:*')), packages & set(sys.modules))"
    )
    done = python(code)
    assert done.stdout.split(None, 1) == ["30", "set()\n"]


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120
    )


@pytest.mark.parametrize("id", ["sciworld:boil", "textworld:CoinCollector-v0"])
def test_missing_java_error_names_the_package_to_install(id: str, tmp_path: Path) -> None:
    code = (
        f"from gem_core.__main__ import main; raise SystemExit(main(['play', {id!r}, '--random']))"
    )
    for env, cause in (
        ({"PATH": str(tmp_path), "JAVA_HOME": ""}, "no `java`"),
        ({"JAVA_HOME": str(tmp_path)}, "has no bin/java"),
    ):
        done = python(code, **env)
        assert done.returncode == 2
        assert all(text in done.stderr for text in ("needs Java", cause, "default-jre-headless"))
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("pattern", SCENARIOS)
def test_missing_package_error_names_the_extra(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = list_envs(pattern)[0]
    for name in ("minigrid", "minigrid.envs.babyai.core.roomgrid_level"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    recipe_book.cache_clear()
    for program in (SciWorld.program, TextWorld.program):
        for cached in ("folder", "classpath", "java"):
            monkeypatch.delitem(vars(program), cached, raising=False)
    with pytest.raises(MissingDependencyError, match=rf"\.\[{spec(id).extra}\]"):
        make(id)


@pytest.mark.parametrize(
    ("id", "kwargs"),
    [
        ("babyai:GoToDoor-v0", {"level": "GoToMars"}),
        ("sciworld:boil", {"task": "boill"}),
        ("sciworld:boil", {"split": "tests"}),
        ("sciworld:boil", {"simplify": "openDoor"}),
        ("textworld:CoinCollector-v0", {"game": "coins"}),
        ("textworld:CoinCollector-v0", {"fold": "valid"}),
        ("textcraft:TextCraft-v0", {"min_depth": 9}),
        ("textcraft:TextCraft-v0", {"min_depth": 3, "max_depth": 2}),
        ("textcraft:TextCraft-v0", {"max_turns": 0}),
    ],
)
def test_make_rejects_invalid_arguments(id: str, kwargs: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, UnknownNameError)):
        make(id, **kwargs)


@pytest.mark.parametrize("pattern", SCENARIOS)
def test_random_player_finishes_and_seldom_wins(pattern: str) -> None:
    id = {"sciworld:*": "sciworld:find-plant", "textworld:*": "textworld:CookingWorld-v0"}.get(
        pattern, list_envs(pattern)[-1]
    )
    episodes = run_batch(tasks_for(id, seeds=range(3)), RandomPlayer())
    assert all(episode.turns and not episode.failed for episode in episodes)
    assert sum(episode.total_reward for episode in episodes) < 3.0


# BabyAI.


@pytest.mark.parametrize("level", BABYAI_LEVELS)
def test_expert_completes_every_babyai_level(level: str) -> None:
    env = make(f"babyai:{level}-v0")
    inner: Any = env.unwrapped
    env.reset(seed=SEEDS.get(level, 1))
    total, info = play(env, expert_for(level, inner))
    assert (total, info["success"]) == (1.0, True)


def test_seed_gives_minigrids_mission() -> None:
    world = gymnasium.make("BabyAI-BossLevel-v0", disable_env_checker=True).unwrapped
    env = make("babyai:BossLevel-v0")
    for seed in range(3):
        world.reset(seed=seed)
        text, info = env.reset(seed=seed)
        assert info["mission"] == world.mission
        assert f"Your mission: {world.mission}." in text


def test_go_to_costs_one_turn_and_stops_in_front_of_the_thing() -> None:
    env: Any = make("babyai:PickupLoc-v0").unwrapped
    observation, _ = env.reset(seed=0)
    far = env.things[-1]
    assert far.ahead + abs(far.right) > 2
    assert f"{far}" in observation
    env.step(f"go to {far.name}")
    assert env.turn == 1
    assert (env.things[0].ahead, env.things[0].right) == (1, 0)
    assert env.things[0].name.split()[:2] == far.name.split()[:2]
    assert env.world.step_count > 1


def test_impossible_action_costs_a_turn_and_is_reported() -> None:
    env: Any = make("babyai:UnlockLocalDist-v0").unwrapped
    before = env.reset(seed=0)[0].splitlines()[-2:]
    for action in ("drop", "fly", "go to red dragon 1", "pick up", ""):
        observation, reward, terminated, truncated, _ = env.step(action)
        assert (reward, terminated, truncated) == (0.0, False, False)
        lines = observation.splitlines()
        assert lines[0].startswith("That is") and lines[-2:] == before
    assert env.world.step_count == 0


def test_box_holds_the_key_that_opens_the_door() -> None:
    env: Any = make("babyai:KeyInBox-v0").unwrapped
    env.reset(seed=1)
    observations = [env.step(action)[0] for action in expert_for("KeyInBox", env)]
    assert any("You carry a" in text and "key" in text for text in observations)
    assert observations[-1] == "The mission is done."


# TextCraft.


@pytest.mark.parametrize("id", list_envs("textcraft:*"))
def test_every_goal_can_be_crafted_within_the_turn_limit(id: str) -> None:
    env = make(id)
    inner: Any = env.unwrapped
    for goal in inner.goals():
        env.reset(seed=0, options={"goal": goal})
        total, info = play(env, inner.expert())
        assert (total, info["success"]) == (1.0, True), goal


def test_goals_have_the_requested_depth_and_vary_with_the_seed() -> None:
    book = recipe_book()
    for depth in (1, 2, 3, 4):
        env: Any = make(f"textcraft:TextCraft-v0-depth{depth}").unwrapped
        assert {book.depth(goal) for goal in env.goals()} == {depth}
        assert len({env.reset(seed=seed)[1]["goal"] for seed in range(30)}) > 5
    assert min(map(book.depth, TextCraft().goals())) == 2


def test_commands_include_every_needed_recipe() -> None:
    env = TextCraft()
    for seed in range(50):
        text, _ = env.reset(seed=seed)
        commands = text.partition("Crafting commands:\n")[2].partition("\n\nGoal")[0].splitlines()
        _, crafts = recipe_book().plan(env.goal)
        assert {str(recipe) for recipe, _ in crafts} <= set(commands)
        assert len(commands) == len(set(commands))


def test_craft_follows_recipes_exactly() -> None:
    env = TextCraft()
    env.reset(seed=0, options={"goal": "wooden sword"})
    for action, feedback in (
        ("get 1 oak planks", "Could not find 1 oak planks."),  # they are crafted
        ("get 1 planks", "Could not find 1 planks."),  # a kind, not an item
        ("get 1 unicorn", "Could not find 1 unicorn."),
        ("craft 4 oak planks using 1 oak logs", "You do not have enough oak logs."),
        ("get 2 oak logs", "Got 2 oak logs."),
        ("craft 4 oak planks using 2 oak logs", "No recipe makes oak planks of exactly that."),
        ("CRAFT 4 oak planks  using 1 oak logs", "Crafted 4 oak planks."),
        ("craft 4 stick using 2 oak planks", "Crafted 4 stick."),
        ("inventory", "Inventory: 1 oak logs, 2 oak planks, 4 stick."),
        (
            "craft 1 wooden sword using oak planks",
            "'oak planks' is no number and item, such as '2 oak planks'.",
        ),
    ):
        assert env.step(action)[0] == feedback
    assert "is no action" in env.step("take everything")[0]
    assert env.step("craft 1 wooden sword using 1 stick, 2 oak planks")[1:3] == (1.0, True)
    with pytest.raises(OptionError, match="goal must be"):
        env.reset(options={"goal": "unicorn"})


def test_recipe_book_keeps_the_packing_recipe_of_an_inverse_pair() -> None:
    pack, unpack = Recipe("block", 1, (("ingot", 9),)), Recipe("ingot", 9, (("block", 1),))
    for recipes in ([pack, unpack], [unpack, pack]):
        book = RecipeBook((recipe, "") for recipe in recipes)
        assert book.of == {"block": [pack]}
        assert (book.raw, book.depth("block")) == ({"ingot"}, 1)


# SciWorld and TextWorldExpress: one JVM per concurrent episode.


@pytest.mark.parametrize("game", TEXTWORLD_GAMES)
def test_expert_wins_every_textworld_game(game: str) -> None:
    env = make(f"textworld:{TEXTWORLD_GAMES[game][0]}-v0")
    inner: Any = env.unwrapped
    for seed in range(3):
        env.reset(seed=seed)
        total, info = play(env, inner.expert())
        assert (round(total, 9), info["success"]) == (1.0, True)


@pytest.mark.parametrize(
    "task", few_of(sorted(SCIWORLD_TASKS, key=lambda task: task != "find-plant"), 2)
)
def test_expert_solves_sciworld_task(task: str) -> None:
    env = make(f"sciworld:{task}")
    inner: Any = env.unwrapped
    _, info = env.reset(seed=1)
    total, info = play(env, inner.expert())
    assert (round(total, 9), info["success"]) == (1.0, True)


def test_failed_sciworld_task_pays_nothing() -> None:
    env = SciWorld("find-plant")
    env.reset(options={"variation": 0})
    observation, reward, terminated, _, info = env.step("focus on agent")
    assert (terminated, info["success"]) == (True, False)
    assert reward <= 0.0 and "failed" in observation


def test_options_and_splits_select_variations_and_worlds() -> None:
    env = SciWorld("find-plant", split="test")
    assert env.reset(seed=3)[1]["variation"] == env.reset(seed=3)[1]["variation"]
    with pytest.raises(OptionError, match="variation must be one of"):
        env.reset(options={"variation": 0})
    all_of_them = SciWorld("find-plant")
    assert all_of_them.reset(options={"variation": 7})[1] == {"variation": 7}
    assert {all_of_them.reset(seed=seed)[1]["variation"] for seed in range(4)} != {7}
    train, test = TextWorld("sorting"), TextWorld("sorting", fold="test")
    assert test.reset(options={"world": 5})[0] != train.reset(options={"world": 5})[0]
    with pytest.raises(OptionError, match="from 0 to 999"):
        test.reset(options={"world": 1000})
    with pytest.raises(ConfigError, match="numRooms"):
        TextWorld("coin", params="numRooms=3").reset(seed=1)


def test_only_sequential_episodes_share_a_jvm() -> None:
    first, second = TextWorld("coin"), TextWorld("coin")
    for env in (first, second):
        env.reset(seed=1)
    assert first.machine is not second.machine
    machine, running = first.machine, len(java._started)
    first.close()
    third = TextWorld("sorting")
    third.reset(seed=2)
    assert third.machine is machine
    assert len(java._started) == running
    second.close()
    play(third, third.expert())
    # The end of the episode returns the JVM, even without close().
    assert third.ended and third._machine is None


def test_jvm_of_a_garbage_collected_environment_returns_to_the_pool() -> None:
    env = TextWorld("coin")
    env.reset(seed=1)
    machine = env.machine
    del env
    gc.collect()
    assert machine in java._idle


def test_concurrent_episodes_equal_sequential_ones() -> None:
    def episode(seed: int) -> list[str]:
        env = SciWorld("grow-fruit")
        observations = [env.reset(seed=seed, options={"variation": seed % 2})[0]]
        observations += [
            env.step(action)[0]
            for action in ("wait1", "look around", "open door to greenhouse", "wait1", "inventory")
        ]
        env.close()
        return observations

    alone = [episode(seed) for seed in range(2)]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(episode, range(2))) == alone


def test_dead_jvm_fails_only_its_episode() -> None:
    env = TextWorld("coin")
    first = env.reset(seed=1)
    env.machine._process.kill()
    # the first message depends on whether the process has ended before the step
    for message in ("TextWorldExpress (died|has no running)", "has no running JVM"):
        with pytest.raises(EnvDiedError, match=message):
            env.step("look around")
    assert env.reset(seed=1) == first


def test_lone_surrogate_in_an_action_leaves_the_jvm_running() -> None:
    with SciWorld("boil") as env:
        env.reset(seed=1)
        machine = env.machine
        env.step("look at \ud83d")
        assert env.machine is machine


@pytest.mark.parametrize("when", ["in an episode", "idle"])
def test_dead_jvm_leaves_no_open_pipes(when: str) -> None:
    env = TextWorld("coin")
    env.reset(seed=1)
    machine = env.machine
    if when == "idle":
        env.close()
        env = TextWorld("coin")
    process = machine._process
    process.kill()
    process.wait()
    env.reset(seed=1)
    assert env.machine is not machine and machine not in java._idle
    assert process.stdin is not None and process.stdin.closed
    assert process.stdout is not None and process.stdout.closed
    env.close()


def test_close_ends_a_jvm_with_an_abandoned_step() -> None:
    env = TextWorld("coin")
    env.reset(seed=1)
    machine = env.machine
    machine._busy = True  # as during a step that the engine has abandoned
    env.close()
    assert not machine.usable and machine not in java._idle


def test_java_start_error_shows_stderr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "bin" / "java"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho 'no room on this machine' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    known = TextWorld.program
    program = JavaProgram(
        known.name, known.extra, known.package, "textworld-express.jar", known.class_name
    )
    with pytest.raises(EnvError, match="no room on this machine"):
        program.borrow()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, None])
def test_java_exits_with_the_process_that_started_it(how: signal.Signals | None) -> None:
    code = (
        "import sys, time; from gem_envs.agentgym.textworld import TextWorld; "
        "env = TextWorld('coin'); env.reset(seed=1); "
        "print(env.machine._process.pid, flush=True); time.sleep(60 * int(sys.argv[1]))"
    )
    command = [sys.executable, "-c", code, "0" if how is None else "1"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True
    ) as process:
        assert process.stdout is not None
        machine = int(process.stdout.readline())
        if how is not None:
            process.send_signal(how)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{machine}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{machine}").exists()
