"""Tests of plugins: install, select and block them, and report those that do not load."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from project import ROOT, SOURCES, Installation, clean_env, run

import gem_core
from gem_core import hookimpl
from gem_core.env.registry import environments
from gem_core.errors import PluginError
from gem_core.plugins.manager import installed_plugins, register_plugin, unregister_plugin

USE_ALL_OF_IT = r"""
import json
import gem_core, gem_example_plugin
lost = gem_core.ScriptedPlayer(lambda env, observation: "\\boxed{wrong}")
tasks = gem_core.tasks_for("example:Anagram-v0", [1, 2], wrappers=["turn_cost(cost=0.5)"])
episodes = gem_core.run_batch(tasks, lost)
print(json.dumps({
    "rewards": [e.rewards for e in episodes],
    "advantages": gem_core.advantages(episodes, "centred", gamma=1.0),
    "stops": gem_example_plugin.stops,
}))
"""


def test_example_plugin_adds_env_wrapper_estimator_and_hook(with_plugin: Installation) -> None:
    done = with_plugin.run_python(USE_ALL_OF_IT)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["rewards"] == [[-0.5, -0.5, -0.5]] * 2
    assert printed["advantages"] == [[-0.5, 0.0, 0.5]] * 2
    assert printed["stops"] == {"terminated": 2}


def test_example_plugin_passes_its_own_tests(with_plugin: Installation, tmp_path: Path) -> None:
    source = ROOT / "examples" / "plugin_project" / "tests" / "test_plugin.py"
    tests = tmp_path / "test_plugin.py"  # a copy, to test the installed package
    tests.write_text(source.read_text())
    assert "6 passed" in run(
        with_plugin.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests, cwd=tmp_path
    )


def test_commands_list_and_use_the_plugin(with_plugin: Installation) -> None:
    plugins = {p["name"]: p for p in json.loads(with_plugin.command("plugins", "--json").stdout)}
    assert plugins["example"]["origin"] == "gem-example-plugin 1.0.0"
    assert set(plugins["example"]["hooks"]) == {
        "episode_end",
        "register_environments",
        "register_estimators",
        "register_wrappers",
    }
    assert "example:Anagram-v0-long" in with_plugin.command("envs", "example:*").stdout
    assert "turn_cost" in with_plugin.command("wrappers").stdout
    played = with_plugin.command(
        "play",
        "example:Anagram-v0",
        "--random",
        "--seed",
        "2",
        "--wrappers",
        "turn_cost(cost=0.25)",
    )
    assert played.returncode == 0, played.stderr
    assert "total reward" in played.stdout


@pytest.mark.parametrize(
    ("variables", "loaded"),
    [
        ({}, {"example", "oat", "openrlhf", "rl2", "skyrl", "tinker", "trl", "verl"}),
        (
            {"GEM_PLUGINS_BLOCK": "example, verl"},
            {"oat", "openrlhf", "rl2", "skyrl", "tinker", "trl"},
        ),
        ({"GEM_PLUGINS": "example,trl"}, {"example", "trl"}),
        ({"GEM_PLUGINS": "example,trl", "GEM_PLUGINS_BLOCK": "trl"}, {"example"}),
        ({"GEM_PLUGINS": ""}, set()),
    ],
)
def test_environment_variables_select_plugins(
    with_plugin: Installation, variables: dict[str, str], loaded: set[str]
) -> None:
    done = with_plugin.command("plugins", "--json", **variables)
    plugins = json.loads(done.stdout)
    assert {p["name"] for p in plugins if p["loaded"] and p["origin"] != "built in"} == loaded
    assert {p["name"] for p in plugins if not p["loaded"]} == {
        "example",
        "oat",
        "openrlhf",
        "rl2",
        "skyrl",
        "tinker",
        "trl",
        "verl",
    } - loaded
    assert ("example:Anagram-v0" in with_plugin.command("envs", **variables).stdout) == (
        "example" in loaded
    )


@pytest.fixture
def broken(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `gem-rl` with an installed plugin `broken` that has this source."""

    def with_module(
        text: str, *arguments: str, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        (tmp_path / "broken_plugin.py").write_text(text)
        (tmp_path / "exits_at_import.py").write_text("raise SystemExit(0)")
        info = tmp_path / "broken_plugin-3.1.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plugin\nVersion: 3.1\n")
        (info / "entry_points.txt").write_text("[gem]\nbroken = broken_plugin\n")
        paths = os.pathsep.join([str(tmp_path), *SOURCES])
        command = [sys.executable, "-m", "gem_core", *(arguments or ("envs",))]
        return subprocess.run(
            command,
            env=clean_env(PYTHONPATH=paths, **variables),
            capture_output=True,
            text=True,
            timeout=60,
        )

    return with_module


def test_plugin_import_error_names_the_plugin_and_how_to_block_it(
    broken: Callable[..., Any],
) -> None:
    done = broken("import no_such_module")
    assert done.returncode == 2
    assert done.stderr == (
        "gem-rl: error: the plugin 'broken' (from broken-plugin 3.1) cannot be loaded: "
        "ModuleNotFoundError: No module named 'no_such_module'. "
        "Fix or uninstall it, or skip it with GEM_PLUGINS_BLOCK=broken\n"
    )


@pytest.mark.parametrize("status", ["0", "3", ""])
def test_plugin_that_exits_is_reported(broken: Callable[..., Any], status: str) -> None:
    done = broken(
        f"import sys; sys.exit({status})", "eval", "game:GuessTheNumber-v0-easy", "--random"
    )
    assert done.returncode == 2
    assert (
        "the plugin 'broken' (from broken-plugin 3.1) cannot be loaded: SystemExit" in done.stderr
    )


def test_environment_module_that_exits_is_reported(broken: Callable[..., Any]) -> None:
    plugin = (
        "from gem_core import hookimpl\n"
        "@hookimpl\n"
        "def register_environments(register): register('x:Exits-v0', 'sys:exit')\n"
    )
    done = broken(plugin.replace("sys:exit", "exits_at_import:X"), "play", "x:Exits-v0", "--random")
    assert done.returncode == 2 and "cannot be imported" in done.stderr


def test_plugin_that_replaces_a_name_is_logged(broken: Callable[..., Any]) -> None:
    plugin = (
        "from gem_core import hookimpl\n"
        "@hookimpl\n"
        "def register_environments(register):\n"
        "    register('game:Wordle-v0-easy', 'broken_plugin:Mine', replace=True)\n"
    )
    done = broken(plugin)
    assert done.returncode == 0
    assert done.stderr == (
        "the plugin 'broken' replaces the environment 'game:Wordle-v0-easy' "
        "of the plugin 'gem_envs'\n"
    )


def test_blocked_plugin_is_not_imported(broken: Callable[..., Any]) -> None:
    done = broken("import no_such_module", GEM_PLUGINS_BLOCK="broken")
    assert done.returncode == 0, done.stderr
    assert "game:GuessTheNumber-v0-easy" in done.stdout


def test_two_plugins_of_one_name_are_reported(broken: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("")
    info = tmp_path / "other-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[gem]\nbroken = other\n")
    done = broken("")
    assert done.returncode == 2
    assert "two plugins are named 'broken': one from " in done.stderr
    assert "broken-plugin 3.1" in done.stderr and "other 0.1" in done.stderr
    assert broken("", GEM_PLUGINS_BLOCK="broken").returncode == 0


@pytest.mark.parametrize("variable", ["GEM_PLUGINS", "GEM_PLUGINS_BLOCK"])
def test_variable_that_names_no_plugin_gives_a_warning(
    broken: Callable[..., Any], variable: str
) -> None:
    done = broken("", **{variable: "gem_tools,broken,brokn"})
    assert done.returncode == 0
    assert f"{variable} names no installed plugin: brokn" in done.stderr


def test_plugin_that_registers_a_taken_name_is_reported(broken: Callable[..., Any]) -> None:
    done = broken(
        "from gem_core import hookimpl\n"
        "@hookimpl\n"
        "def register_environments(register):\n"
        "    register('game:GuessTheNumber-v0-easy', 'broken_plugin:Mine')\n"
    )
    assert done.returncode == 2
    assert "the plugin 'broken' (from broken-plugin 3.1) cannot be loaded" in done.stderr
    assert "is already registered by the plugin 'gem_envs'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_misspelt_hook_of_an_installed_plugin_is_rejected(broken: Callable[..., Any]) -> None:
    done = broken(
        "from gem_core import hookimpl\n@hookimpl\ndef register_environment(register): ...\n"
    )
    assert done.returncode == 2
    assert "the plugin 'broken'" in done.stderr
    assert "register_environment" in done.stderr
    assert "The hooks are: batch_end, " in done.stderr
    assert done.stderr.count("\n") == 1


COMMAND = """
SUMMARY = "greet a person"

def add_arguments(parser):
    parser.add_argument("name")

def run(args):
    print(f"hello {args.name}")
    return 0
"""


def test_plugin_adds_a_command(broken: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "greeting.py").write_text(COMMAND)
    plugin = (
        "from gem_core import hookimpl\n"
        "@hookimpl\n"
        "def register_commands(register): register('greet', 'greeting')\n"
    )
    done = broken(plugin, "--help")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ +greet +greet a person$", done.stdout, re.MULTILINE)
    assert re.search(r"^ +play +play an environment", done.stdout, re.MULTILINE)
    done = broken(plugin, "greet", "Ann")
    assert (done.returncode, done.stdout) == (0, "hello Ann\n")
    assert "broken" in broken(plugin, "plugins").stdout


def test_plugin_that_registers_a_taken_command_is_reported(broken: Callable[..., Any]) -> None:
    done = broken(
        "from gem_core import hookimpl\n"
        "@hookimpl\n"
        "def register_commands(register): register('eval', 'mine')\n"
    )
    assert done.returncode == 2
    assert "'eval' is already registered by the plugin 'gem_eval'" in done.stderr


@pytest.fixture
def by_hand() -> Iterator[str]:
    yield "by_hand"
    unregister_plugin("by_hand")
    environments.remove("test:ByHand-v0")


def test_register_plugin_calls_registration_and_event_hooks(by_hand: str) -> None:
    events: list[tuple[Any, ...]] = []

    class Plugin:
        @hookimpl
        def register_environments(self, register: Callable[..., Any]) -> None:
            register(
                "test:ByHand-v0",
                "gem_envs.games.guess_the_number:GuessTheNumber",
                wrappers=["boxed"],
            )

        @hookimpl
        def episode_start(self, task: gem_core.Task, seed: int) -> None:
            events.append(("start", task.env_id, seed))

        @hookimpl
        def turn_end(self, number: int, turn: gem_core.Turn) -> None:
            events.append(("turn", number, turn.action))

        @hookimpl
        def episode_end(self, episode: gem_core.Episode) -> None:
            events.append(("end", episode.stop.value))

        @hookimpl
        def batch_end(self, episodes: list[gem_core.Episode]) -> None:
            events.append(("batch", len(episodes)))

    register_plugin(Plugin(), by_hand)
    assert {p.origin for p in installed_plugins() if p.name == by_hand} == {"registered by hand"}
    gem_core.run_batch(
        gem_core.tasks_for("test:ByHand-v0", [7]),
        gem_core.ScriptedPlayer(lambda env, observation: "\\boxed{0}"),
    )
    assert events == [
        ("start", "test:ByHand-v0", 7),
        *(("turn", number, "\\boxed{0}") for number in range(4)),
        ("end", "truncated"),
        ("batch", 1),
    ]


def test_register_plugin_rejects_a_misspelt_hook_and_forgets_the_plugin() -> None:
    plugin = SimpleNamespace(__name__="misspelt", episode_ended=hookimpl(lambda episode: None))
    with pytest.raises(PluginError, match="'misspelt' implements an unknown hook.*episode_ended"):
        register_plugin(plugin)
    assert "misspelt" not in {p.name for p in installed_plugins()}
    gem_core.run_episode("game:GuessTheNumber-v0-easy", gem_core.RandomPlayer(), seed=1)


def test_plugins_load_once_when_threads_start_together() -> None:
    """No thread sees an incomplete registry."""
    code = """
import threading
from gem_core import make
barrier, errors = threading.Barrier(8), []
def make_one():
    barrier.wait()
    try:
        make("game:Wordle-v0-easy")
    except Exception as error:
        errors.append(error)
threads = [threading.Thread(target=make_one) for _ in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
print(len(errors), errors[:1])
"""
    assert run(sys.executable, "-c", code).strip() == "0 []"


def test_failed_plugin_does_not_stay_registered() -> None:
    class Broken:
        @hookimpl
        def register_wrappers(self, register: Any) -> None:
            raise RuntimeError("boom")

    for _ in range(2):
        with pytest.raises(PluginError, match="boom"):
            register_plugin(Broken(), name="broken")
        assert "broken" not in {p.name for p in installed_plugins()}
