"""Training by OpenRLHF's real `train_ppo_ray`: Ray, DeepSpeed and vLLM, on the CPU (see cpu/), in float32."""

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
    """Run a program on OpenRLHF's mocks for the CPU; returns its output, which is shown if it fails."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = (sys.executable, "-m", "openrlhf_on_cpu", *command)
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    return done.stdout


@pytest.mark.slow
def test_the_recipe_trains_on_the_episodes_it_played(
    tmp_path: Path, say: Callable[[str], None]
) -> None:
    flags = [
        "--updates",
        str(UPDATES),
        "--episodes",
        str(EPISODES),
        "--micro-batch",
        "32",
        "--correction",
        "token",
    ]
    output = run(str(RECIPE), *flags, "--seeds", "80", "--out", str(tmp_path / "out"), cwd=tmp_path)
    assert f"gem-rl plot {tmp_path / 'out'}" in output
    metrics, episodes = (
        read_metrics(tmp_path / "out"),
        list(read_episodes(tmp_path / "out" / "episodes.jsonl")),
    )
    say(
        "\n".join(
            f"update {m['step']}: success {m['success']:.1%}, {m['seconds']:.0f} s" for m in metrics
        )
    )
    assert [m["step"] for m in metrics] == list(range(UPDATES))
    assert len(episodes) == UPDATES * EPISODES
    for m in metrics:
        batch = [
            e for e in episodes if e.turns[0].versions == (m["step"], m["step"])
        ]  # sampled from the weights before it
        assert len(batch) == m["episodes"] == EPISODES
        assert m["success"] == pytest.approx(sum(bool(e.success) for e in batch) / EPISODES)
        assert m["return"] == pytest.approx(sum(sum(e.rewards) for e in batch) / EPISODES)
        assert m["tokens"] == sum(len(t.action_ids) for e in batch for t in e.turns)
        assert m["grad_norm"] > 0 and m["advantage_abs"] > 0 and m["loss"] is not None
        assert abs(m["vllm_kl"]) < 1e-4, (
            "vLLM and the trainer compute the same logprobs, also after an update of the weights"
        )
    assert largest_change(tmp_path / "out" / "model") > 1e-4
    expected = [number % 80 for number in range(UPDATES * EPISODES // 2)]
    assert sorted(expected * 2) == sorted(e.seed for e in episodes), (
        "two samples per row, and the seeds repeat"
    )


@pytest.mark.slow
def test_the_command_trains_asynchronously_with_a_horizon(tmp_path: Path) -> None:
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
    metrics, episodes = (
        read_metrics(tmp_path / "metrics.jsonl"),
        list(read_episodes(tmp_path / "episodes.jsonl")),
    )
    assert [m["step"] for m in metrics] == [0, 1, 2] and len(episodes) == 24
    for episode in episodes:
        assert len(episode.turns) <= (2 if episode.turns[0].versions[0] == 0 else 4), (
            "the horizon grows with the updates"
        )
    assert max(len(e.turns) for e in episodes) > 2
    assert len((tmp_path / "gem_data.jsonl").read_text().splitlines()) == 24


def largest_change(folder: Path) -> float:
    """The largest difference of a weight from the model that training started with."""
    from safetensors.torch import load_file

    after = load_file(str(folder / "model.safetensors"))
    before = load_file(str(tiny_model_path() / "model.safetensors"))
    shared = before.keys() & after.keys()
    assert len(shared) >= len(after) - 1  # a tied output layer may be saved as well
    return max(float((before[n].float() - after[n].float()).abs().max()) for n in shared)
