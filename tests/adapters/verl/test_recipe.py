"""The recipes with verl's real trainer, on a mock platform and inference server."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ray
import tyro
from reference_gradient import gradient_norms

from gem_core.errors import GemError
from gem_core.records.file import read_episodes
from gem_core.training.advantage import advantages
from gem_core.training.metrics_file import read_metrics
from gem_core.training.sequences import token_sequences

RECIPES = Path(__file__).parents[3] / "examples"


def recipe(name: str, out: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a recipe in the parent of `out`, and pass it `out` as a relative path.

    It runs again if Ray, which verl starts, is too slow: Ray waits 30 seconds for its processes.
    """
    command = [
        sys.executable,
        "-m",
        "verl_on_cpu",
        str(RECIPES / f"{name}.py"),
        "--out",
        out.name,
        *arguments,
    ]
    for _ in range(3):
        done = subprocess.run(
            command,
            cwd=out.parent,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=900,
        )
        if "timed out during startup" not in done.stderr:
            break
    return done


@pytest.mark.slow
def test_recipe_trains(tmp_path: Path) -> None:
    log = {
        "VERL_FILE_LOGGER_PATH": str(tmp_path / "verl.jsonl"),
        "VERL_ON_CPU_SETTINGS": "trainer.logger=[console,file]",
    }
    arguments = ("--updates", "3", "--episodes", "32", "--validate", "8")
    done = recipe("verl_guess_the_number", tmp_path / "run", *arguments, **log)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    metrics = read_metrics(tmp_path / "run")
    assert [m["step"] for m in metrics] == [0, 1, 2]
    assert all(m["grad_norm"] > 0 and 0 < m["success"] < 1 and m["failed"] == 0 for m in metrics)
    assert "gem-rl plot run" in done.stdout
    # plain torch makes the same steps from the same episodes
    norms = gradient_norms(tmp_path / "run", weight_decay=0.01)
    assert [m["grad_norm"] for m in metrics] == pytest.approx(norms, rel=1e-3)

    lines = map(json.loads, (tmp_path / "verl.jsonl").read_text().splitlines())
    logged = {line["step"]: line["data"] for line in lines}
    # the training engine computes the logprobs of the sampler
    assert all(log["training/rollout_probs_diff_max"] < 1e-4 for log in logged.values())
    assert all(log["training/off_policy/trajectory_staleness/max"] == 0 for log in logged.values())
    assert "val-aux/game:GuessTheNumber-v0-easy/success/mean@1" in logged[3]

    episodes = list(read_episodes(tmp_path / "run" / "episodes.jsonl"))
    assert len([e for e in episodes if e.final_info.get("evaluation")]) == 8
    for step, log in logged.items():
        trained = [e for e in episodes if e.final_info.get("update") == step - 1]
        assert {e.turns[0].versions for e in trained} == {(step - 1, step - 1)}
        check_update(trained, metrics[step - 1], log)


def test_recipe_names_the_cores_that_ray_lacks(tmp_path: Path) -> None:
    """verl would wait forever; its storage has one unit here, instead of the recipe's two."""
    few = {"VERL_ON_CPU_SETTINGS": "ray_kwargs.ray_init.num_cpus=4"}
    done = recipe("verl_guess_the_number", tmp_path / "run", **few)
    assert done.returncode == 1
    assert "Ray has 4 cores, but verl reserves 6 and would wait for them forever" in done.stderr


def check_update(episodes: list[Any], metrics: dict[str, Any], log: dict[str, Any]) -> None:
    """Compare verl's log and gem's metrics with values computed from the recorded episodes."""
    per_turn = list(zip(episodes, advantages(episodes, "rebn", gamma=0.9)))
    tokens = [
        advantage
        for episode, numbers in per_turn
        for sequence in token_sequences(episode)
        for advantage, m in zip(sequence.broadcast(numbers), sequence.mask)
        if m
    ]
    sizes = [abs(a) for _, numbers in per_turn for a in numbers]
    assert len(episodes) == metrics["episodes"] == 32
    assert metrics["tokens"] == len(tokens)
    mean_return = sum(e.total_reward for e in episodes) / 32
    assert metrics["return"] == log["gem/return"] == pytest.approx(mean_return)
    mean_size = sum(sizes) / len(sizes)
    assert metrics["advantage_abs"] == log["gem/advantage_abs"] == pytest.approx(mean_size)
    assert metrics["loss"] == log["actor/pg_loss"]
    assert log["critic/advantages/max"] == pytest.approx(max(tokens), abs=1e-6)
    assert log["critic/advantages/min"] == pytest.approx(min(tokens), abs=1e-6)
    assert log["critic/advantages/mean"] == pytest.approx(sum(tokens) / len(tokens), abs=1e-6)


@pytest.mark.long
def test_recipe_without_old_logprobs_has_the_same_gradient(tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments = ("--updates", "3", "--episodes", "32", "--skip-old-logprobs")
    done = recipe("verl_guess_the_number", out, *arguments)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    metrics = read_metrics(out)
    norms = gradient_norms(out, weight_decay=0.01)
    assert [m["grad_norm"] for m in metrics] == pytest.approx(norms, rel=1e-3)
    assert not any("logprob_gap" in m for m in metrics)


@pytest.mark.long
def test_recipe_grows_the_horizon_and_appends_to_an_earlier_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "metrics.jsonl").write_text('{"step": 0, "turns": 4.0}\n')
    arguments = ("--updates", "2", "--episodes", "8", "--horizon", "1,2@1")
    done = recipe("verl_scaling_inter", out, *arguments)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    earlier, *metrics = read_metrics(out)
    assert earlier["turns"] == 4.0
    assert [(m["step"], m["horizon"]) for m in metrics] == [(0, 1), (1, 2)]
    assert metrics[0]["turns"] == 1 < metrics[1]["turns"] <= 2


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("verl_guess_the_number", ["--advantage", "gea"], "did you mean 'gae'"),
        (
            "verl_guess_the_number",
            ["--advantage", "grpo", "--samples", "1"],
            "actor_rollout_ref.rollout.n is 1",
        ),
        ("verl_scaling_inter", ["--horizon", "ten"], "horizon schedule"),
    ],
)
def test_recipe_rejects_settings_before_verl_starts(
    name: str, arguments: list[str], message: str, tmp_path: Path
) -> None:
    module = runpy.run_path(str(RECIPES / f"{name}.py"))
    out, ray_runs = tmp_path / "run", ray.is_initialized()
    with pytest.raises(GemError, match=message):
        module["main"](tyro.cli(module["Args"], args=["--out", str(out), *arguments]))
    assert ray.is_initialized() == ray_runs and not out.exists()
