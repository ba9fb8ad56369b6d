"""Tests of the command `gem-rl`."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from project import SOURCES, clean_env

from gem_core import Env, register
from gem_core.__main__ import _parser, main
from gem_core.cli import commands
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
    assert header.split() == ["ID", "TURNS", "EXTRA", "SUMMARY"]
    assert line.split()[:2] == [EASY, "4"]


def test_envs_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "GuessTheNumber", "--json"]) == 0
    envs = {entry["id"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert envs[EASY]["turns"] == 4
    assert envs["game:GuessTheNumber-v0-random"]["turns"] is None


@pytest.mark.parametrize(
    ("words", "expected", "unexpected"),
    [
        (["maths"], "rg:chain_sum", EASY),  # a tag
        (["hidden", "number"], EASY, "game:Wordle-v0"),  # the summary
        (["multi-turn", "java"], "sciworld:boil", "rg:chain_sum"),
        (["online"], "math:GSM8K", EASY),  # and not "offline"
        (["minigrid"], "babyai:Open-v0", EASY),  # the data
    ],
)
def test_envs_searches_summaries_and_tags(
    words: list[str], expected: str, unexpected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["envs", *words, "--json"]) == 0
    ids = [entry["id"] for entry in json.loads(capsys.readouterr().out)]
    assert expected in ids
    assert unexpected not in ids


def test_envs_says_when_no_environment_has_the_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "maths", "customer"]) == 2
    message = capsys.readouterr().err
    assert "no environment matches maths and customer" in message
    assert "The tags are" in message and " java, " in message and "server's" not in message


def test_no_two_kinds_of_reasoning_tasks_share_a_summary() -> None:
    summaries = [spec.summary for id, spec in environments.all().items() if id.startswith("rg:")]
    assert len(summaries) == len(set(summaries)) == 105


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
    assert main(["estimators"]) == 0
    assert re.search(r"^grpo +groups +gamma, scale +A = ", capsys.readouterr().out, re.MULTILINE)
    assert main(["estimators", "--json"]) == 0
    assert "rebn" in {entry["name"] for entry in json.loads(capsys.readouterr().out)}
    assert plugins["gem_envs"]["hooks"] == [
        "register_commands",
        "register_environments",
        "register_wrappers",
    ]
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
    assert re.search(r"^trl +not installed +- ", out, re.MULTILINE)
    assert f"  missing: {missing}\n  to install it:\n{install}" in out
    monkeypatch.setattr(declaration.platform, "python_version", lambda: "3.10.13")
    assert main(["adapters", "trl"]) == 0
    out = capsys.readouterr().out
    missing = f"Python >=3.11 (this is 3.10.13); {missing}"
    assert re.search(r"^trl +cannot run here +- ", out, re.MULTILINE)
    assert f"  missing: {missing}\n  to install it on a supported machine:\n{install}" in out
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


@pytest.mark.parametrize("command", ["envs", "wrappers", "estimators", "plugins"])
def test_tables_fit_the_terminal_and_break_no_name(command: str) -> None:
    lines = in_terminal(command, COLUMNS="72", NO_COLOR="1").splitlines()
    assert len(lines) > 3
    assert max(map(len, lines)) <= 72
    if command == "envs":
        shown = {line.split()[0] for line in lines if line and not line.startswith(" ")}
        assert set(environments.all()) <= shown


def test_terminal_shows_names_in_colour_unless_the_user_objects() -> None:
    assert "\x1b[36mboxed\x1b[0m" in in_terminal("wrappers", TERM="xterm")
    assert "\x1b" not in in_terminal("wrappers", TERM="xterm", NO_COLOR="1")
    assert "\x1b" not in in_terminal("wrappers", TERM="dumb")


def in_terminal(command: str, **environment: str) -> str:
    """Return what a command prints to a terminal."""
    master, slave = pty.openpty()
    listing = subprocess.Popen([*GEM, command], stdout=slave, env={**ENV, **environment})
    os.close(slave)
    text = b""
    while chunk := _read(master):  # while it runs: a terminal buffers only a few kilobytes
        text += chunk
    os.close(master)
    assert listing.wait(timeout=60) == 0
    return text.decode()


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


def test_table_gives_long_names_a_line_of_their_own() -> None:
    rows = [("a:very-long-name-of-an-environment", "one two three", "x"), ("b", "four", "y")]
    assert table(("NAME", "WORDS", "Z"), rows, 30).splitlines() == [
        "NAME          WORDS          Z",
        "a:very-long-name-of-an-environment",
        "              one two three  x",
        "b             four           y",
    ]


def test_table_with_too_many_columns_becomes_pairs() -> None:
    rows = [("a:name", "0.500 [0.000, 1.000]", "unbreakable", "x")]
    assert table(("NAME", "RETURN", "LONG", "Z"), rows, 20).splitlines() == [
        "a:name",
        "  RETURN 0.500 [0.000, 1.000]",
        "  LONG unbreakable",
        "  Z x",
    ]


@pytest.mark.parametrize("command", commands.all())
def test_every_help_has_examples_that_parse(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    examples = capsys.readouterr().out.partition("examples:\n")[2].splitlines()
    assert examples
    for example in examples:
        program, *arguments = shlex.split(example)
        assert program == "gem-rl"
        assert _parser().parse_args(arguments).run


def test_help_of_the_program_has_examples_that_parse(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    examples = capsys.readouterr().out.partition("examples:\n")[2].partition("\n\n")[0]
    for example in examples.splitlines():
        assert _parser().parse_args(shlex.split(example)[1:]).run


def test_shell_completes_commands_and_ids() -> None:
    pytest.importorskip("argcomplete")

    def completions(line: str) -> list[str]:
        environment = {
            **ENV,
            "_ARGCOMPLETE": "1",
            "_ARGCOMPLETE_IFS": "\n",
            "_ARGCOMPLETE_COMP_WORDBREAKS": "",
            "COMP_LINE": line,
            "COMP_POINT": str(len(line)),
        }
        reading, writing = os.pipe()
        run = f"{shlex.join(GEM)} 8>&{writing} 9>/dev/null"
        subprocess.run(["bash", "-c", run], env=environment, pass_fds=[writing], timeout=60)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            return [word.strip() for word in pipe.read().split("\n")]

    assert completions("gem-rl ch") == ["check"]
    assert EASY in completions("gem-rl show game:Guess")
    assert "trl" in completions("gem-rl adapters t")


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
