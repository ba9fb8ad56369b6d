"""The AgentEvol recipe: play, keep the good episodes, imitate, repeat."""

from __future__ import annotations

from pathlib import Path

from recipes import run_recipe

from gem_core.records.file import read_episodes
from gem_core.training.metrics_file import read_metrics

RECIPE = "no_framework_agentevol.py"


def test_recipe_writes_metrics_episodes_and_a_curve(tmp_path: Path) -> None:
    done = run_recipe(
        RECIPE, tmp_path, "--rounds", "2", "--episodes", "16", "--eval-episodes", "16"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("held-out success: ")
    lines, episodes = read_metrics(tmp_path), list(read_episodes(tmp_path / "episodes.jsonl"))
    assert [line["step"] for line in lines] == [0, 1]
    assert all({"success", "return", "loss", "grad_norm"} <= set(line) for line in lines)
    assert len(episodes) == 32
    good = sum(episode.total_reward == 1.0 for episode in episodes[:16])
    assert f"kept {good}" in done.stdout
    # The tiny model solves some games at once, so there is something to imitate.
    assert lines[0]["loss"] > 0.0
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_unknown_environment_is_reported_before_the_model_is_loaded(tmp_path: Path) -> None:
    done = run_recipe(RECIPE, tmp_path, "--env", "game:GuessTheNumbr-v0")
    assert done.returncode != 0
    assert "did you mean" in done.stderr
