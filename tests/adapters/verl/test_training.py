"""A short real training: the recipe, verl's own `main_ppo` with its default trainer, on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gem_core.records.file import read_episodes
from gem_core.training.advantage import advantages
from gem_core.training.sequences import token_views

ENV = {k: v for k, v in os.environ.items() if not k.startswith(("VERL_", "PYTHONPATH"))}
"""As a user has it: the recipe itself brings the stand-ins in."""
RECIPES = Path(__file__).parents[3] / "examples"


@pytest.mark.slow
def test_the_recipe_trains(tmp_path: Path, say: Callable[[str], None]) -> None:
    recipe = RECIPES / "verl_guess_the_number.py"
    command = [recipe, "--updates", "3", "--episodes", "32", "--validate", "8", "--out", tmp_path / "run"]
    done = subprocess.run(
        [sys.executable, *map(str, command)], cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=540
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    say("\n".join(line for line in done.stdout.splitlines() if line.startswith("success")))
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [m["step"] for m in metrics] == [0, 1, 2]
    assert all(m["grad_norm"] > 0 and 0 < m["success"] < 1 and m["failed"] == 0 for m in metrics)

    logged = {line["step"]: line["data"] for line in map(json.loads, (tmp_path / "run" / "verl.jsonl").read_text().splitlines())}
    assert all(log["training/rollout_probs_diff_max"] < 1e-4 for log in logged.values()), (
        "the engine's logprobs are the sampler's"
    )
    assert all(log["training/off_policy/trajectory_staleness/max"] == 0 for log in logged.values())
    assert "val-aux/game:GuessTheNumber-v0-easy/success/mean@1" in logged[3]

    # what verl logs of its advantages is what the core makes of the recorded episodes
    episodes = [e for path in (tmp_path / "run").glob("episodes-*.jsonl") for e in read_episodes(path)]
    assert len([e for e in episodes if e.seed >= 1_000_000]) == 8
    for step, log in logged.items():
        played = [e for e in episodes if e.seed < 1_000_000 and e.turns[0].versions == (step - 1, step - 1)]
        assert len(played) == 32
        credit = zip(played, advantages(played, "rebn", gamma=0.9))
        tokens = [a for e, numbers in credit for view in token_views(e) for a, m in zip(view.spread(numbers), view.mask) if m]
        assert log["critic/advantages/max"] == pytest.approx(max(tokens), abs=1e-5)
        assert log["critic/advantages/min"] == pytest.approx(min(tokens), abs=1e-5)
        assert log["critic/advantages/mean"] == pytest.approx(sum(tokens) / len(tokens), abs=1e-5)
        assert log["gem/return"] == pytest.approx(sum(e.total_reward or 0.0 for e in played) / 32)


@pytest.mark.parametrize(
    ("recipe", "arguments", "says"),
    [
        ("verl_guess_the_number", ["--advantage", "gae"], "needs a critic"),
        ("verl_guess_the_number", ["--model", "smollm2"], "on a GPU"),
        ("verl_scaling_inter", ["--episodes", "3"], "--episodes must be a multiple of --samples"),
        ("verl_scaling_inter", ["--schedule", "ten"], "'ten' is no horizon schedule"),
    ],
)
def test_a_recipe_refuses_what_cannot_work(recipe: str, arguments: list[str], says: str, tmp_path: Path) -> None:
    command = [sys.executable, str(RECIPES / f"{recipe}.py"), *arguments, "--out", str(tmp_path)]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and says in done.stderr and "Traceback" not in done.stderr
