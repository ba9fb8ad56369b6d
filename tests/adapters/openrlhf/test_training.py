"""Training with OpenRLHF's real `train_ppo_ray`, Ray, DeepSpeed and vLLM, on the CPU (see cpu/)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gem_core.policies.tiny import tiny_model_path
from gem_core.records.file import read_episodes
from gem_core.training.metrics_file import read_metrics

RECIPE = Path(__file__).parents[3] / "examples" / "openrlhf_guess_the_number.py"
UPDATES, EPISODES = 3, 64


def run(*command: str, cwd: Path) -> str:
    """Run a program with the CPU mocks of OpenRLHF, and return its output."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = (sys.executable, "-m", "openrlhf_on_cpu", *command)
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    return done.stdout


@pytest.mark.slow
def test_recipe_trains(tmp_path: Path, say: Callable[[str], None]) -> None:
    out = tmp_path / "out"
    settings: dict[str, Any] = {
        "updates": UPDATES,
        "episodes": EPISODES,
        "micro-batch": 32,
        "correction": "token",
        "seeds": 80,
        "out": out,
    }
    flags = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    assert f"gem-rl plot {out}" in run(str(RECIPE), *flags, cwd=tmp_path)
    metrics, episodes = read_metrics(out), list(read_episodes(out / "episodes.jsonl"))
    for m in metrics:
        say(f"update {m['step']}: success {m['success']:.1%}, {m['seconds']:.0f} s")
    assert [m["step"] for m in metrics] == list(range(UPDATES))
    assert len(episodes) == UPDATES * EPISODES
    for m in metrics:
        # an update trains on the episodes sampled from the weights before it
        batch = [e for e in episodes if e.turns[0].versions == (m["step"], m["step"])]
        assert len(batch) == m["episodes"] == EPISODES
        assert m["success"] == pytest.approx(sum(bool(e.success) for e in batch) / EPISODES)
        assert m["return"] == pytest.approx(sum(sum(e.rewards) for e in batch) / EPISODES)
        assert m["tokens"] == sum(len(t.action_ids) for e in batch for t in e.turns)
        assert m["grad_norm"] > 0 and m["advantage_abs"] > 0 and m["loss"] is not None
        assert abs(m["vllm_kl"]) < 1e-4, "vLLM and the trainer compute the same logprobs"
    assert largest_change(out / "model") > 1e-4
    # two samples per row, and the seeds repeat
    seeds = [number % 80 for number in range(UPDATES * EPISODES // 2)]
    assert sorted(seeds * 2) == sorted(e.seed for e in episodes)


@pytest.mark.slow
def test_command_trains_asynchronously_with_a_horizon(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "gem.env_id": "game:GuessTheNumber-v0-easy",
        "gem.seeds": 24,
        "gem.horizon": "2,4@1",
        "gem.max_turn_tokens": 16,
        "gem.record": "episodes.jsonl",
        "gem.metrics": "metrics.jsonl",
        "actor.model_name_or_path": tiny_model_path(),
        "actor.num_gpus_per_node": 1,
        "algo.kl.init_coef": 0,
        "ckpt.output_dir": tmp_path / "model",
        "data.max_len": 512,
        "ds.attn_implementation": "sdpa",
        "rollout.batch_size": 8,
        "rollout.micro_batch_size": 8,
        "train.batch_size": 8,
        "train.micro_batch_size": 8,
        "vllm.num_engines": 1,
    }
    flags = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    run("-m", "gem_openrlhf", *flags, "--vllm.enforce_eager", "--train.async_enable", cwd=tmp_path)
    episodes = list(read_episodes(tmp_path / "episodes.jsonl"))
    assert [m["step"] for m in read_metrics(tmp_path / "metrics.jsonl")] == [0, 1, 2]
    assert len(episodes) == 24
    for episode in episodes:
        # the horizon grows with the updates
        assert len(episode.turns) <= (2 if episode.turns[0].versions[0] == 0 else 4)
    assert max(len(e.turns) for e in episodes) > 2
    assert len((tmp_path / "gem_data.jsonl").read_text().splitlines()) == 24


def largest_change(folder: Path) -> float:
    """Return the largest change of a weight during training."""
    from safetensors.torch import load_file

    after = load_file(str(folder / "model.safetensors"))
    before = load_file(str(tiny_model_path() / "model.safetensors"))
    shared = before.keys() & after.keys()
    assert len(shared) >= len(after) - 1  # a tied output layer may be saved, too
    return max(float((before[n].float() - after[n].float()).abs().max()) for n in shared)
