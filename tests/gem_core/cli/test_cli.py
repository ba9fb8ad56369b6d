"""Tests of the command `gem-rl`."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from project import SOURCES, clean_env

from gem_core import Env, register
from gem_core.__main__ import main
from gem_core.cli.terminal import table
from gem_core.env.registry import environments

EASY = "game:GuessTheNumber-v0-easy"
GEM = [sys.executable, "-m", "gem_core"]
ENV = clean_env(PYTHONPATH=os.pathsep.join(SOURCES))


class Echo(Env):
    """An async environment with an option, a suffix and a system prompt, without sample_action."""

    option_names = frozenset({"greeting"})
    closed = 0

    async def on_reset(self, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:  # type: ignore[override]
        await asyncio.sleep(0)
        return str(options.get("greeting", "Hello.")), {
            "system": "Be kind.",
            "suffix": "What do you say?",
        }

    async def on_step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:  # type: ignore[override]
        await asyncio.sleep(0)
        return f"You said {action}.", 0.5, action == "bye", False, {}

    async def on_close(self) -> None:  # type: ignore[override]
        type(self).closed += 1


@pytest.fixture
def echo() -> Iterator[str]:
    Echo.closed = 0
    register("test:Echo-v0", Echo)
    yield "test:Echo-v0"
    environments.remove("test:Echo-v0")


def type_text(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_envs_lists_ids_with_their_facts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "guess*easy"]) == 2  # a pattern must match the complete id
    assert main(["envs", "*guess*easy"]) == 0
    header, line = capsys.readouterr().out.splitlines()[:2]
    assert header.split() == ["ID", "TURNS", "REWARD", "DATA", "EXTRA", "SUMMARY"]
    assert line.split()[:2] == [EASY, "4"]


def test_envs_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "GuessTheNumber", "--json"]) == 0
    envs = {entry["id"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert envs[EASY]["turns"] == 4
    assert envs["game:GuessTheNumber-v0-random"]["turns"] is None


def test_envs_suggests_similar_ids_when_nothing_matches(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["envs", "game:GessTheNumber"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(
        "gem-rl: error: no environment is registered as 'game:GessTheNumber'; did you mean "
    )
    assert captured.err.count("\n") == 1


def test_wrappers_and_plugins_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wrappers"]) == 0
    assert "boxed" in capsys.readouterr().out
    assert main(["wrappers", "--json"]) == 0
    assert "react" in {entry["name"] for entry in json.loads(capsys.readouterr().out)}
    assert main(["plugins", "--json"]) == 0
    plugins = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert plugins["gem_envs"]["hooks"] == ["register_commands", "register_environments"]
    assert plugins["gem_envs"]["origin"] == "built in"


def test_adapters_prints_what_is_missing_and_how_to_install_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import gem_trl
    from gem_core.adapter_kit import declaration

    monkeypatch.setattr(declaration.adapters, "_known", {"trl": gem_trl.ADAPTER})
    monkeypatch.setattr(declaration, "_installed", lambda *_: None)
    monkeypatch.setattr(declaration.platform, "python_version", lambda: "3.11.7")
    assert main(["adapters", "trl"]) == 0
    out = capsys.readouterr().out
    missing = f"trl{gem_trl.ADAPTER.versions}"
    install = "    pip install '.[trl]' -c constraints/trl.txt\n"
    assert f"trl: missing {missing}\n  to install it:\n{install}" in out
    monkeypatch.setattr(declaration.platform, "python_version", lambda: "3.10.13")
    assert main(["adapters", "trl"]) == 0
    out = capsys.readouterr().out
    missing = f"Python >=3.11 (this is 3.10.13); {missing}"
    assert f"trl: missing {missing}\n  to install it on a supported machine:\n{install}" in out
    assert main(["adapters", "tlr"]) == 2
    assert "did you mean 'trl'?" in capsys.readouterr().err


def test_play_adds_the_action_format_to_typed_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    type_text(monkeypatch, "1\n\\boxed{10}\n")
    assert main(["play", EASY, "--seed", "3", "--max-turns", "2"]) == 0
    out = capsys.readouterr().out
    assert f"{EASY}, seed 3\n" in out
    assert "(sent as \\boxed{1})" in out
    assert "(sent as \\boxed{\\boxed" not in out
    assert "[turn 2: reward 0]" in out
    assert out.endswith("stopped after 2 turns: total reward 0\n")


def test_play_raw_sends_the_input_unchanged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    type_text(monkeypatch, "1\n")
    assert main(["play", EASY, "--seed", "3", "--raw"]) == 0
    out = capsys.readouterr().out
    assert "sent as" not in out
    assert out.endswith("terminated after 1 turn: total reward -0.1, not solved\n")


def test_play_random_is_deterministic(capsys: pytest.CaptureFixture[str]) -> None:
    outs = []
    wrappers = "react,turn_limit(max_turns=1)"
    for _ in range(2):
        assert main(["play", EASY, "--seed", "5", "--random", "--wrappers", wrappers]) == 0
        outs.append(capsys.readouterr().out)
    assert outs[0] == outs[1]
    assert "Action: " in outs[0]
    assert "truncated after 1 turn:" in outs[0] or "terminated after 1 turn:" in outs[0]


def test_play_runs_and_closes_an_async_env(
    echo: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    type_text(monkeypatch, "hi\nbye\n")
    assert main(["play", echo, "--options", '{"greeting": "Moin."}']) == 0
    out = capsys.readouterr().out
    assert "\nBe kind.\n\nMoin.\nWhat do you say?\n" in out
    assert "You said hi.\n[turn 1: reward 0.5]\n" in out
    assert out.endswith("terminated after 2 turns: total reward 1\n")
    assert Echo.closed == 1


def test_play_stops_at_the_end_of_input(
    echo: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    type_text(monkeypatch, "hi\n")
    assert main(["play", echo]) == 0
    assert capsys.readouterr().out.endswith("\nend of input\n")
    assert Echo.closed == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["play", "game:GuessTheNumbr-v0-easy"], "did you mean 'game:GuessTheNumber-v0-easy'"),
        (
            ["play", "Guess"],
            "did you mean 'game:GuessTheNumber-v0' or 'game:GuessTheNumber-v0-easy'",
        ),
        (["play", EASY, "--wrappers", "boxd"], "did you mean 'boxed'"),
        (["play", EASY, "--wrappers", "turn_limit(3)"], "write it as name(key=value"),
        (["play", EASY, "--wrappers", "turn_limit"], "needs 'max_turns'"),
        (["play", EASY, "--seed", "-1"], "seed must be an integer >= 0"),
        (["play", EASY, "--options", "{"], "is not JSON"),
        (["play", EASY, "--options", "[1]"], "must be a JSON object"),
        (["play", EASY, "--options", '{"colour": 1}'], "does not know the option(s) 'colour'"),
        (["play", EASY, "--max-turns", "0"], "--max-turns must be >= 1"),
        (["play", "test:Echo-v0", "--random"], "does not define sample_action()"),
    ],
)
def test_gem_error_prints_one_line(
    arguments: list[str], message: str, echo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("gem-rl: error: ")
    assert message in err
    assert err.count("\n") == 1


def test_ctrl_c_exits_with_130_without_a_traceback() -> None:
    play = subprocess.Popen(
        [*GEM, "play", EASY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENV,
        text=True,
    )
    assert play.stdout is not None
    while "boxed" not in (line := play.stdout.readline()):
        assert line, "play ended before Ctrl-C"
    time.sleep(0.5)  # until it waits for input
    play.send_signal(signal.SIGINT)
    _, err = play.communicate(timeout=30)
    assert play.returncode == 130
    assert "Traceback" not in err


def test_closed_pipe_exits_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*GEM, "envs"], stdout=writing, stderr=subprocess.PIPE, env=ENV, text=True, timeout=60
    )
    os.close(writing)
    assert done.returncode == 141
    assert done.stderr == ""


@pytest.mark.parametrize("command", ["envs", "wrappers", "plugins"])
def test_tables_fit_the_terminal(command: str) -> None:
    master, slave = pty.openpty()
    listing = subprocess.Popen([*GEM, command], stdout=slave, env={**ENV, "COLUMNS": "72"})
    os.close(slave)
    text = b""
    while chunk := _read(master):  # while it runs: a terminal buffers only a few kilobytes
        text += chunk
    os.close(master)
    assert listing.wait(timeout=60) == 0
    lines = text.decode().splitlines()
    assert len(lines) > 3
    assert max(map(len, lines)) <= 72


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux raises when the other end is closed
        return b""


def test_table_wraps_the_widest_column_first() -> None:
    rows = [("a", "one two three four", "x")]
    assert table(("N", "WORDS", "Z"), rows, 16).splitlines() == [
        "N  WORDS       Z",
        "a  one two     x",
        "   three four",
    ]
    assert table(("N", "WORDS", "Z"), rows).splitlines() == [
        "N  WORDS               Z",
        "a  one two three four  x",
    ]


def test_python_m_gem_core_runs_the_command() -> None:
    done = subprocess.run([*GEM, "--version"], capture_output=True, env=ENV, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "gem-rl 0.2.0\n")


def test_missing_command_prints_the_help_and_exits_with_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "play an environment in the terminal" in captured.err
