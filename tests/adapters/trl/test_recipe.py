"""Recipes with TRL, as a user runs them: a short training each with the real TRL."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from project import ROOT
from recipes import METRICS, interrupt_recipe, run_recipe
from reference_gradient import gradient_norms

from gem_core.errors import ConfigError, UnknownNameError
from gem_core.records.file import read_episodes
from gem_core.training.metrics_file import read_metrics

GUESS, MATHS = "trl_guess_the_number.py", "trl_maths_with_python.py"


def test_recipe_trains(tmp_path: Path) -> None:
    done = run_recipe(GUESS, tmp_path, "--updates", "16", "--episodes", "96")
    assert done.returncode == 0, done.stderr
    assert f"metrics: {tmp_path}/metrics.jsonl" in done.stdout.splitlines()
    lines = read_metrics(tmp_path)
    assert [line["step"] for line in lines] == list(range(16))
    assert all(set(line) >= METRICS and line["episodes"] == 96 for line in lines)
    # plain torch makes the same steps from the same episodes
    norms = gradient_norms(tmp_path, updates=4)
    assert [line["grad_norm"] for line in lines[:4]] == pytest.approx(norms, rel=1e-3)
    assert (
        sum(line["success"] for line in lines[-4:]) / 4
        > sum(line["success"] for line in lines[:4]) / 4 + 0.05
    )


def test_recipe_rejects_an_unknown_environment(tmp_path: Path) -> None:
    recipe = runpy.run_path(str(ROOT / "examples" / GUESS))
    with pytest.raises(UnknownNameError, match="did you mean 'game:GuessTheNumber-v0-easy'"):
        recipe["main"](recipe["Args"](out=str(tmp_path), env="game:GuesTheNumber-v0-easy"))
    assert list(tmp_path.iterdir()) == []


def test_recipe_rejects_an_update_without_episodes(tmp_path: Path) -> None:
    recipe = runpy.run_path(str(ROOT / "examples" / GUESS))
    with pytest.raises(ConfigError, match="--episodes must be a whole number of at least 1, got 0"):
        recipe["main"](recipe["Args"](out=str(tmp_path), episodes=0))
    assert list(tmp_path.iterdir()) == []


def test_recipe_leaves_readable_files_after_ctrl_c_and_a_second_run_appends(tmp_path: Path) -> None:
    done = interrupt_recipe(GUESS, tmp_path, "--updates", "1000", "--episodes", "8")
    assert done.returncode not in (0, None)
    assert "KeyboardInterrupt" in done.stderr or "Interrupted" in done.stderr
    lines = read_metrics(tmp_path)
    assert len(lines) >= 3
    episodes = list(read_episodes(tmp_path / "episodes.jsonl"))
    assert len(episodes) >= 8 * len(lines)
    done = run_recipe(GUESS, tmp_path, "--warm-up", "3", "--updates", "1", "--episodes", "32")
    assert done.returncode == 0, done.stderr
    prefix = "SFT warm-up: 3 updates, loss "
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(prefix)]
    assert float(line.removeprefix(prefix)) < 1.5, "the tiny model already knows the format"
    assert [line["step"] for line in read_metrics(tmp_path)][len(lines) :] == [0]
    assert len(list(read_episodes(tmp_path / "episodes.jsonl"))) == len(episodes) + 32


@pytest.mark.long
def test_recipe_with_a_tool_records_tool_calls(tmp_path: Path) -> None:
    short = ("--warm-up", "120", "--warm-up-episodes", "48", "--updates", "1", "--episodes", "32")
    done = run_recipe(MATHS, tmp_path, *short)
    assert done.returncode == 0, done.stderr
    assert [set(line) >= METRICS for line in read_metrics(tmp_path)] == [True]
    episodes = list(read_episodes(tmp_path / "episodes.jsonl"))
    assert any(turn.info.get("use_tool") for episode in episodes for turn in episode.turns)
