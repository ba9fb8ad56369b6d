"""Training on a CPU with RL2's real trainer, router and loss: recipes and command line."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from rl2_programs import EXAMPLES, run

from gem_core.policies.tiny import tiny_model_path
from gem_core.records.file import read_episodes
from gem_core.training.metrics_file import read_metrics


def test_recipe_trains(tmp_path: Path, say: Callable[[str], None]) -> None:
    out = tmp_path / "run"
    arguments = ["--updates", "16", "--episodes", "96", "--max-length", "1024", "--out", str(out)]
    output = run(tmp_path, EXAMPLES / "rl2_guess_the_number.py", *arguments)
    assert f"metrics: {out}/metrics.jsonl" in output
    metrics = read_metrics(out)
    assert [m["step"] for m in metrics] == list(range(16))
    assert all(
        math.isfinite(m["loss"]) and 0 < m["grad_norm"] < 100 and m["episodes"] == 96
        for m in metrics
    )
    episodes = list(read_episodes(out / "episodes.jsonl"))
    assert len(episodes) == 16 * 96
    success = [
        sum(bool(e.success) for e in episodes[i : i + 96]) / 96 for i in range(0, len(episodes), 96)
    ]
    assert [m["success"] for m in metrics] == success
    assert {t.versions for e in episodes[-96:] for t in e.turns} == {(15, 15)}
    first, last = sum(success[:3]) / 3, sum(success[-5:]) / 5
    say(f"success in RL2: {first:.1%} in the first 3 updates, {last:.1%} in the last 5")
    assert last > first, f"success went from {first:.1%} to {last:.1%}"
    assert (out / "model" / "config.json").is_file()


def test_recipe_appends_to_an_earlier_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments = ["--updates", "1", "--episodes", "8", "--max-length", "1024", "--out", str(out)]
    for recipe in ("rl2_async.py", "rl2_guess_the_number.py"):
        run(tmp_path, EXAMPLES / recipe, *arguments)
    assert [m["step"] for m in read_metrics(out)] == [0, 0]
    assert len(list(read_episodes(out / "episodes.jsonl"))) == 16


def test_command_line_trains(tmp_path: Path) -> None:
    output = run(
        tmp_path,
        "-m",
        "gem_rl2",
        "+gem.env_id=game:GuessTheNumber-v0-easy",
        "+gem.seeds=8",
        "+gem.eval_seeds=4",
        "+gem.advantage=grpo",
        "+gem.max_turn_tokens=16",
        f"actor.model_name={tiny_model_path()}",
        "actor.max_length_per_device=1024",
        "actor.lr=1e-3",
        "actor.update_per_rollout=2",
        "train_data.prompts_per_rollout=8",
        "train_data.responses_per_prompt=4",
        "trainer.use_wandb=false",
        "trainer.test_freq=1",
        "trainer.experiment_name=test",
    )
    assert "estimator: gem" in output
    assert "gem/return/train" in output
    assert "gem/return/test" in output
    assert "actor/grad_norm" in output


def test_command_line_without_an_environment_is_rejected(tmp_path: Path) -> None:
    output = run(tmp_path, "-m", "gem_rl2", "trainer.use_wandb=false", code=1)
    assert "the command line, in +gem.X=Y, has no env_id" in output
