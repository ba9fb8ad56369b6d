"""The soak, on fewer episodes: nothing is lost, silently wrong, or left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from project import ROOT, SOURCES, clean_env

SOAK = ROOT / "benchmarks" / "soak.py"
sys.path.insert(0, str(SOAK.parent))

import soak  # noqa: E402


def run(episodes: int, folder: Path) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    out = folder / "results.json"
    done = subprocess.run(
        [sys.executable, SOAK, "--episodes", str(episodes), "--out", out],
        env=clean_env(PYTHONPATH=os.pathsep.join(SOURCES)),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert out.exists(), done.stderr
    return done, json.loads(out.read_text())


@pytest.mark.parametrize("episodes", [1_500, pytest.param(15_000, marks=pytest.mark.slow)])
def test_soak_loses_and_leaks_nothing(episodes: int, tmp_path: Path) -> None:
    done, results = run(episodes, tmp_path)
    # How many healthy episodes miss the deadline depends on the machine.
    assert set(soak.problems(results)) <= {"healthy but over the deadline"}, done.stdout
    assert done.returncode == bool(soak.problems(results))
    counts = {fault: count["episodes"] for fault, count in results["faults"].items()}
    assert set(counts) == set(soak.SHARES) and all(counts.values())
    assert sum(counts.values()) == pytest.approx(0.1 * episodes, rel=0.05)


def test_plan_has_a_tenth_of_faults() -> None:
    assert sum(soak.SHARES.values()) == pytest.approx(0.1)
    plan = soak.planned(10_000)
    assert len(plan) == 10_000 and plan == soak.planned(10_000)
    assert sum(fault in soak.SHARES for fault in plan) == 1_000


def test_every_kind_of_loss_is_a_problem() -> None:
    count = soak.Count(["crash", "", "", ""])

    def add(index: int, reward: float, failed: bool = False, stop: str = "env_error") -> None:
        reason = type("Stop", (), {"value": stop})
        facts = {"index": index, "stop": reason, "failed": failed, "total_reward": reward}
        count.add(type("Episode", (), {**facts, "failure": "a failure"}))

    add(0, 0.0)  # a fault that became a silent zero
    add(1, 2.0)  # a wrong reward
    add(2, 0.0, failed=True)  # a healthy episode that failed
    add(2, 0.0, failed=True, stop="env_deadline")  # returned twice; number 3 is lost
    left = {f"{name} left": 1 for name in ("threads", "open files", "children", "processes")}
    results = {**count.results(), **left, "folders left": 1, "memory growth in MB": 201.0}
    results["episodes"] = 4
    assert soak.problems(results) == [
        "lost",
        "returned twice",
        "faults without a failure",
        "healthy with another reward",
        "healthy but failed otherwise",
        "threads left",
        "open files left",
        "children left",
        "processes left",
        "folders left",
        "memory growth in MB",
        "healthy but over the deadline",
    ]


def test_page_shows_the_committed_results() -> None:
    results = json.loads((SOAK.parent / "results" / "soak.json").read_text())
    assert results["episodes"] == 100_000 and soak.problems(results) == []
    page = (ROOT / "docs" / "soak.md").read_text(encoding="utf-8")
    assert soak.table(results) in page
