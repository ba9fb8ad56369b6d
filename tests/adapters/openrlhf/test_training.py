"""The recipe, through OpenRLHF's real `train_ppo_ray`: Ray, DeepSpeed and vLLM, on the CPU (see cpu/), in float32."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import CPU

from gem_core.policies.tiny import tiny_model_path
from gem_core.records.file import read_episodes
from gem_openrlhf.config import read_label

ROOT = Path(__file__).parents[3]
UPDATES, EPISODES = 3, 64


def run(out: Path, *args: str) -> str:
    """Runs the recipe; what it printed is shown where it fails."""
    command = [sys.executable, "-m", "openrlhf_on_cpu", str(ROOT / "examples" / "openrlhf_guess_the_number.py"), *args]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(CPU), *(p for p in sys.path if p)])}
    done = subprocess.run([*command, "--out", str(out)], env=env, capture_output=True, text=True, timeout=420)
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    return done.stdout


@pytest.mark.slow
def test_train_ppo_ray_trains_on_what_was_played(tmp_path: Path, say: Callable[[str], None]) -> None:
    flags = ["--updates", str(UPDATES), "--episodes", str(EPISODES), "--rows", "32", "--correction", "token"]
    said = run(tmp_path, *flags, "--horizon", "2,4@1")
    say("\n".join(line for line in said.splitlines() if line.startswith("success")))
    metrics, logs = (lines(tmp_path / name) for name in ("metrics.jsonl", "openrlhf.jsonl"))
    episodes = list(read_episodes(tmp_path / "episodes.jsonl"))
    assert [m["step"] for m in metrics] == list(range(UPDATES))
    assert len(episodes) == UPDATES * EPISODES

    # every sample of an update is from the weights before it, and the horizon grew with the updates
    for step, log in enumerate(logs):
        batch = [e for e in episodes if e.turns[0].versions == (step, step)]
        assert len(batch) == EPISODES
        assert max(len(e.turns) for e in batch) == (2 if step == 0 else 4)
        assert log["gem/success"] == pytest.approx(sum(bool(e.success) for e in batch) / EPISODES)
        assert log["gem/return"] == pytest.approx(sum(sum(e.rewards) for e in batch) / EPISODES)
        assert log["rollout/reward_mean"] == pytest.approx(log["gem/return"])
        assert log["gem/tokens"] == sum(len(t.action_ids) for e in batch for t in e.turns)

    # vLLM's logprobs are those the trainer computes for the same tokens, before and after an update of the weights
    assert all(abs(log["vllm_kl"]) < 1e-4 and log["is_filter_ratio"] < 1e-3 for log in logs)
    assert all(log["actor_grad_norm"] > 0 for log in logs)
    assert sum(m["success"] for m in metrics) > 0
    assert changed(tmp_path / "model") > 1e-4

    starts = [read_label(row["label"])[1] for row in lines(tmp_path / "starts.jsonl")]
    assert sorted(starts * 2) == sorted(e.seed for e in episodes), "each start twice"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def changed(folder: Path) -> float:
    """How far the weight that moved most is from where it started."""
    from safetensors.torch import load_file

    after = load_file(str(folder / "model.safetensors"))
    before = load_file(str(tiny_model_path() / "model.safetensors"))
    shared = before.keys() & after.keys()
    assert len(shared) >= len(after) - 1  # a tied output layer may be written out
    return max(float((before[n].float() - after[n].float()).abs().max()) for n in shared)
