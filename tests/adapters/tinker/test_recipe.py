"""Recipes with Tinker, as a user runs them: training on the local server."""

from __future__ import annotations

from pathlib import Path

import pytest
from recipes import METRICS, interrupt_recipe, run_recipe

from gem_core.records.file import read_episodes
from gem_core.training.metrics_file import read_metrics

GUESS, MATHS = "tinker_guess_the_number.py", "tinker_maths_with_python.py"


def test_recipe_resumes_after_ctrl_c(tmp_path: Path) -> None:
    short = ("--episodes", "8", "--save-every", "1")
    done = interrupt_recipe(GUESS, tmp_path, "--updates", "1000", *short)
    assert done.returncode not in (0, None)
    assert "KeyboardInterrupt" in done.stderr or "Interrupted" in done.stderr
    lines = read_metrics(tmp_path)
    total = str(len(lines) + 2)
    done = run_recipe(GUESS, tmp_path, "--updates", total, *short)
    assert done.returncode == 0, done.stderr
    assert f"metrics: {tmp_path}/metrics.jsonl" in done.stdout.splitlines()
    lines = read_metrics(tmp_path)
    # at most the update that Ctrl-C interrupted is made twice
    assert sorted({line["step"] for line in lines}) == list(range(int(total)))
    assert len(lines) <= int(total) + 1
    assert all(set(line) >= METRICS and line["episodes"] == 8 for line in lines)


@pytest.mark.parametrize("without", [("--warm-up", "0"), ("--tools", "")])
def test_recipe_without_a_warm_up_trains_the_model_itself(
    without: tuple[str, str], tmp_path: Path
) -> None:
    done = run_recipe(MATHS, tmp_path, *without, "--updates", "1", "--episodes", "4")
    assert done.returncode == 0, done.stderr
    assert "SFT warm-up" not in done.stdout and not (tmp_path / "warm").exists()
    assert len(read_metrics(tmp_path)) == 1


def test_recipe_saves_the_model_of_its_warm_up_at_once(tmp_path: Path) -> None:
    """A folder that a killed run left incomplete is not used."""
    (tmp_path / "warm.new").mkdir()
    (tmp_path / "warm.new" / "config.json").write_text("{")
    short = ("--warm-up", "4", "--warm-up-episodes", "4", "--updates", "1", "--episodes", "4")
    done = run_recipe(MATHS, tmp_path, *short)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "warm" / "tokenizer_config.json").is_file()
    assert not (tmp_path / "warm.new").exists()


@pytest.mark.long
def test_recipe_with_a_tool_records_tool_calls(tmp_path: Path) -> None:
    short = ("--warm-up", "120", "--warm-up-episodes", "48", "--updates", "1", "--episodes", "16")
    done = run_recipe(MATHS, tmp_path, *short)
    assert done.returncode == 0, done.stderr
    assert [set(line) >= METRICS for line in read_metrics(tmp_path)] == [True]
    episodes = list(read_episodes(tmp_path / "episodes.jsonl"))
    assert any(turn.info.get("use_tool") for episode in episodes for turn in episode.turns)


@pytest.mark.long
@pytest.mark.parametrize("one_step_off", [False, True])
def test_recipe_trains(one_step_off: bool, tmp_path: Path) -> None:
    how = ("--loss", "ppo", "--one-step-off") if one_step_off else ()
    done = run_recipe(GUESS, tmp_path, "--updates", "20", "--episodes", "96", *how)
    assert done.returncode == 0, done.stderr
    success = [line["success"] for line in read_metrics(tmp_path)]
    assert sum(success[-4:]) / 4 > sum(success[:4]) / 4 + 0.05
