"""Tests of the README: its code and its commands run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from project import ROOT

import gem_core
from gem_core.__main__ import main

README = (ROOT / "README.md").read_text()


def blocks_with(word: str) -> list[str]:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    matches = [block for block in blocks if word in block]
    assert matches, f"no Python block of the README contains {word!r}"
    return matches


def test_readme_python_that_plays_episodes_runs() -> None:
    names: dict[str, Any] = {}
    exec(blocks_with("gem_core.make")[0], names)
    assert len(names["episodes"]) == 32
    assert [len(numbers) for numbers in names["credit"]] == [
        len(episode.turns) for episode in names["episodes"]
    ]


def test_readme_environment_can_be_played() -> None:
    names: dict[str, Any] = {}
    exec(blocks_with("class Maze")[0], names)
    player = gem_core.ScriptedPlayer(lambda env, observation: "left")
    episodes = [gem_core.run_episode(names["Maze"](), player, seed=seed) for seed in range(20)]
    assert {episode.total_reward for episode in episodes} == {0.0, 1.0}


@pytest.mark.parametrize("line", re.findall(r"^    (gem-rl .*)$", README, re.MULTILINE))
def test_readme_indented_commands_run(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("builtins.input", lambda prompt: "5")
    assert main(shlex.split(line)[1:]) == 0
    assert capsys.readouterr().out


def test_readme_evaluation_commands_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run in order, without the one that needs a server and the one that plots runs."""
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```sh\n(gem-rl eval.*?)```", README, re.DOTALL)
    lines = [
        line for line in block.splitlines() if "--server" not in line and "gem-rl plot" not in line
    ]
    assert len(lines) == 4
    for line in lines:
        assert main(shlex.split(line)[1:]) == 0, line
    assert (tmp_path / "runs" / "random" / "episodes.html").is_file()


def test_readme_test_command_is_the_ci_command() -> None:
    command = (
        "python3.11 -m venv .venv && .venv/bin/pip install tox && .venv/bin/tox run-parallel -p 2"
    )
    assert f"\n    {command}\n" in README
    assert f"\n{command}\n" in (ROOT / ".ci" / "run").read_text()
