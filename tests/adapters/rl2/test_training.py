"""Training on a CPU with RL2's real trainer, router and loss: the recipe, and RL2's own command line."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gem_rl2.ppo
from gem_core.records.file import read_episodes

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[2] / "examples"


def run(cwd: Path, program: Path | str, *arguments: str, code: int = 0, **env: str) -> str:
    """A program that trains with RL2, on the CPU."""
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if "stand_ins" not in p), "OMP_NUM_THREADS": "1"}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"):
        given.pop(name, None)
    command = [sys.executable, HERE / "on_cpu.py", program, *arguments]
    done = subprocess.run(command, cwd=cwd, env={**given, **env}, capture_output=True, text=True, timeout=600)
    said = "\n".join(line for line in (done.stdout + done.stderr).splitlines() if "http_request" not in line)
    assert done.returncode == code, said[-4000:]
    return said


def test_the_recipe_learns(tmp_path: Path, say: Callable[[str], None]) -> None:
    small = ["--updates", "16", "--episodes", "96", "--max-length", "1024", "--out", str(tmp_path / "run")]
    said = run(tmp_path, EXAMPLES / "rl2_guess_the_number.py", *small)
    say("\n".join(line for line in said.splitlines() if line.startswith("success")))
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [m["step"] for m in metrics] == list(range(16))
    assert all(math.isfinite(m["loss"]) and 0 < m["grad_norm"] < 100 for m in metrics)
    episodes = list(read_episodes(tmp_path / "run" / "episodes.jsonl"))
    assert len(episodes) == 16 * 96
    played = [sum(bool(e.success) for e in episodes[i : i + 96]) / 96 for i in range(0, len(episodes), 96)]
    assert [m["success"] for m in metrics] == played
    assert {t.versions for e in episodes[-96:] for t in e.turns} == {(15, 15)}
    first, last = sum(played[:3]) / 3, sum(played[-5:]) / 5
    assert last > first, f"success went from {first:.1%} to {last:.1%}"
    assert (tmp_path / "run" / "model" / "config.json").is_file()


def test_rl2_s_own_command_line_trains(tmp_path: Path) -> None:
    from gem_core.policies.tiny import tiny_model_path

    said = run(
        tmp_path,
        gem_rl2.ppo.__file__,
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
    assert "estimator: gem" in said
    assert "gem/return/train" in said
    assert "gem/return/test" in said
    assert "actor/grad_norm" in said


def test_a_command_line_without_an_environment_says_so(tmp_path: Path) -> None:
    said = run(tmp_path, gem_rl2.ppo.__file__, "trainer.use_wandb=false", code=1)
    assert "+gem.env_id=... names the environment" in said


def test_the_recipe_refuses_the_folder_of_another_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    said = run(tmp_path, EXAMPLES / "rl2_guess_the_number.py", "--out", str(tmp_path / "run"), code=1)
    assert "holds the metrics of an earlier run" in said
