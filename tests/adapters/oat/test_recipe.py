"""The recipe as a user starts it: oat's own program of actor, learner and plasma store, each a process, until it has learnt."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from gem_core.errors import GemError
from gem_core.records.file import read_episodes

ROOT = Path(__file__).parents[3]
STAND_INS = Path(__file__).parent / "stand_ins"


def run_recipe(out: Path, *args: str, timeout: float = 400) -> tuple[int, str]:
    """Its exit code, and what it printed."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(STAND_INS), *filter(None, sys.path)]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "examples" / "oat_guess_the_number.py"), "--out", str(out), *args]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout)
    return done.returncode, done.stdout


def lines_of(out: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / name).read_text().splitlines()]


@pytest.mark.slow
def test_it_learns_with_rebn(tmp_path: Path, say: Callable[[str], None]) -> None:
    code, said = run_recipe(tmp_path / "run", "--updates", "12", "--turns", "128", "--concurrency", "16")
    assert code == 0, said[-3000:]
    say("\n".join(said.splitlines()[-3:]))
    metrics, logged = lines_of(tmp_path / "run", "metrics.jsonl"), lines_of(tmp_path / "run", "oat.jsonl")
    assert [m["step"] for m in metrics] == list(range(12))
    first, last = (sum(m["success"] for m in part) / len(part) for part in (metrics[:3], metrics[-10:]))
    assert last > first - 0.1  # so few episodes are noisy; with a wrong sign, success is soon near 0
    assert all(m["grad_norm"] > 0 and 0 < m["older_weights"] < 0.6 for m in metrics[1:])
    # the actor samples from the learner's weights: but for turns of episodes that were carried over, their logprobs agree
    assert abs(logged[0]["train/kl_sample_train_v1"]) < 1e-4
    assert median(line["train/kl_sample_train_v2"] for line in logged) < 0.03
    episodes = list(read_episodes(tmp_path / "run" / "episodes-0.jsonl"))
    assert sum(m["episodes"] for m in metrics) <= len(episodes)
    assert {v for e in episodes for t in e.turns for v in t.versions} == set(range(12))


@pytest.mark.slow
def test_ppo_with_the_critic_on_two_learners(tmp_path: Path, say: Callable[[str], None]) -> None:
    code, said = run_recipe(
        tmp_path / "run", "--advantage", "gae", "--updates", "4", "--gpus", "2", "--turns", "32", "--concurrency", "4"
    )
    assert code == 0, said[-3000:]
    say("\n".join(said.splitlines()[-3:]))
    metrics = lines_of(tmp_path / "run", "metrics.jsonl")
    assert [m["step"] for m in metrics] == list(range(4))
    assert all(m["grad_norm"] > 0 for m in metrics)
    # oat logs the loss of one transition, which is 0 for a lost game as long as the critic says 0, as it does at first
    assert max(m["critic_loss"] for m in metrics) > 0
    both = [list(read_episodes(tmp_path / "run" / f"episodes-{actor}.jsonl")) for actor in (0, 1)]
    assert {e.seed for e in both[0]} & {e.seed for e in both[1]} == set()
    assert sum(m["episodes"] for m in metrics) <= sum(map(len, both))


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--turns", "0"], "--turns must be 1 or more"),
        (["--advantage", "rebm"], "rebn"),
        (["--advantage", "grpo"], "samples to 2 or more"),
        (["--horizon", "300"], "do not fit into rollout_batch_size_per_device=256"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], says: str
) -> None:
    recipe = runpy.run_path(str(ROOT / "examples" / "oat_guess_the_number.py"))
    monkeypatch.setattr(sys, "argv", ["recipe", "--out", str(tmp_path / "run"), *args])
    with pytest.raises(GemError, match=says):
        recipe["train"](recipe["parse_args"]())


def test_the_metrics_of_an_earlier_run_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "metrics.jsonl").write_text("{}")
    recipe = runpy.run_path(str(ROOT / "examples" / "oat_guess_the_number.py"))
    monkeypatch.setattr(sys, "argv", ["recipe", "--out", str(tmp_path)])
    with pytest.raises(GemError, match="--overwrite"):
        recipe["train"](recipe["parse_args"]())
