"""What somebody sees who types `gem-rl`."""

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
    """Async, with an option, a suffix and no sample_action: everything `play` has to cope with."""

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


def typing(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_envs_lists_ids_with_what_is_known_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "guess*easy"]) == 2  # a pattern is one for the whole id
    assert main(["envs", "*guess*easy"]) == 0
    header, line = capsys.readouterr().out.splitlines()[:2]
    assert header.split() == ["ID", "TURNS", "REWARD", "DATA", "EXTRA", "SUMMARY"]
    assert line.split()[:2] == [EASY, "4"]


def test_envs_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "GuessTheNumber", "--json"]) == 0
    found = {entry["id"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert found[EASY]["turns"] == 4
    assert found["game:GuessTheNumber-v0-random"]["turns"] is None


def test_a_pattern_without_a_match_suggests_what_there_is(
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


def test_adapters_say_what_is_missing_and_the_line_that_mends_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import gem_trl
    from gem_core.adapter_kit import declaration

    monkeypatch.setattr(declaration.adapters, "_known", {"trl": gem_trl.ADAPTER})
    monkeypatch.setattr(declaration, "_installed", lambda *_: None)
    monkeypatch.setattr(declaration.platform, "python_version", lambda: "3.11.7")
    assert main(["adapters", "trl"]) == 0
    out = capsys.readouterr().out
    wanted = f"trl{gem_trl.ADAPTER.versions}"
    assert (
        f"trl: missing {wanted}\n  to install it:\n    pip install '.[trl]' -c constraints/trl.txt\n"
        in out
    )
    monkeypatch.setattr(declaration.platform, "python_version", lambda: "3.10.13")
    assert main(["adapters", "trl"]) == 0
    out = capsys.readouterr().out
    assert (
        f"trl: missing Python >=3.11 (this is 3.10.13); {wanted}\n  to install it, elsewhere:\n    pip install "
        in out
    )
    assert main(["adapters", "tlr"]) == 2
    assert "did you mean 'trl'?" in capsys.readouterr().err


def test_a_person_wins_a_game_and_need_not_type_the_format(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typing(monkeypatch, "1\n\\boxed{10}\n")
    assert main(["play", EASY, "--seed", "3", "--max-turns", "2"]) == 0
    out = capsys.readouterr().out
    assert f"{EASY}, seed 3\n" in out
    assert "(sent as \\boxed{1})" in out
    assert "(sent as \\boxed{\\boxed" not in out
    assert "[turn 2: reward 0]" in out
    assert out.endswith("stopped here after 2 turns: total reward 0\n")


def test_raw_sends_what_was_typed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typing(monkeypatch, "1\n")
    assert main(["play", EASY, "--seed", "3", "--raw"]) == 0
    out = capsys.readouterr().out
    assert "sent as" not in out
    assert out.endswith("the end after 1 turn: total reward -0.1, not solved\n")


def test_random_play_repeats_itself(capsys: pytest.CaptureFixture[str]) -> None:
    outs = []
    for _ in range(2):
        assert (
            main(
                [
                    "play",
                    EASY,
                    "--seed",
                    "5",
                    "--random",
                    "--wrappers",
                    "react,turn_limit(max_turns=1)",
                ]
            )
            == 0
        )
        outs.append(capsys.readouterr().out)
    assert outs[0] == outs[1]
    assert "Action: " in outs[0]
    assert "cut short after 1 turn:" in outs[0] or "the end after 1 turn:" in outs[0]


def test_an_async_environment_is_played_and_closed(
    echo: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typing(monkeypatch, "hi\nbye\n")
    assert main(["play", echo, "--options", '{"greeting": "Moin."}']) == 0
    out = capsys.readouterr().out
    assert "\nBe kind.\n\nMoin.\nWhat do you say?\n" in out
    assert "You said hi.\n[turn 1: reward 0.5]\n" in out
    assert out.endswith("the end after 2 turns: total reward 1\n")
    assert Echo.closed == 1


def test_the_end_of_input_leaves_in_peace(
    echo: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typing(monkeypatch, "hi\n")
    assert main(["play", echo]) == 0
    assert capsys.readouterr().out.endswith("\nleft.\n")
    assert Echo.closed == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["play", "game:GuessTheNumbr-v0-easy"], "did you mean 'game:GuessTheNumber-v0-easy'"),
        (
            ["play", "Guess"],
            "did you mean 'game:GuessTheNumber-v0' or 'game:GuessTheNumber-v0-easy'",
        ),
        (["play", EASY, "--wrappers", "boxd"], "did you mean 'boxed'"),
        (["play", EASY, "--wrappers", "turn_limit(3)"], "write it as name(key=value"),
        (["play", EASY, "--wrappers", "turn_limit"], "needs 'max_turns'"),
        (["play", EASY, "--seed", "-1"], "a seed is a whole number from 0 up"),
        (["play", EASY, "--options", "{"], "is no JSON"),
        (["play", EASY, "--options", "[1]"], "must be a JSON object"),
        (["play", EASY, "--options", '{"colour": 1}'], "does not know the option(s) 'colour'"),
        (["play", EASY, "--max-turns", "0"], "--max-turns must be 1 or more"),
        (["play", "test:Echo-v0", "--random"], "has no sample_action()"),
    ],
)
def test_an_error_is_one_line(
    arguments: list[str], said: str, echo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("gem-rl: error: ")
    assert said in err
    assert err.count("\n") == 1


def test_ctrl_c_leaves_with_130_and_without_a_traceback() -> None:
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
        assert line, "play ended by itself"
    time.sleep(0.5)  # until it waits for the person
    play.send_signal(signal.SIGINT)
    _, err = play.communicate(timeout=30)
    assert play.returncode == 130
    assert "Traceback" not in err


def test_a_closed_pipe_is_no_error() -> None:
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
    while chunk := _read(master):  # while it runs: a terminal holds a few kilobytes only
        text += chunk
    os.close(master)
    assert listing.wait(timeout=60) == 0
    lines = text.decode().splitlines()
    assert len(lines) > 3
    assert max(map(len, lines)) <= 72


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux: the other end is closed
        return b""


def test_a_table_wraps_the_widest_column_first() -> None:
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


def test_python_m_gem_core_is_the_same_command() -> None:
    done = subprocess.run([*GEM, "--version"], capture_output=True, env=ENV, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "gem-rl 0.2.0\n")


def test_no_command_shows_the_help_and_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "play an environment in the terminal" in said.err
