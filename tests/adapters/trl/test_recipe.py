"""The recipes, as a user runs them: the real TRL, a short real training each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[3] / "examples"


def recipe(name: str, out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / name), "--out", str(out), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "2"})


def metrics_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_guessing_is_learnt(tmp_path: Path, say: Callable[[str], None]) -> None:
    done = recipe("trl_guess_the_number.py", tmp_path / "run", "--updates", "16", "--episodes", "96")
    assert done.returncode == 0, done.stderr
    say("\n".join(line for line in done.stdout.splitlines() if line.startswith(("success", "tool_uses"))))
    metrics = metrics_of(tmp_path / "run")
    assert [m["step"] for m in metrics] == list(range(16))
    assert sum(m["success"] for m in metrics[-4:]) > sum(m["success"] for m in metrics[:4])
    again = recipe("trl_guess_the_number.py", tmp_path / "run")
    assert again.returncode == 1
    assert "--overwrite" in again.stderr


def test_lessons_come_before_the_training(tmp_path: Path) -> None:
    done = recipe("trl_guess_the_number.py", tmp_path / "run", "--lessons", "3", "--updates", "1", "--episodes", "32")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("3 lessons, loss ")]
    assert float(line.rpartition(" ")[2]) < 1.5, "the tiny model knows the format already"
    (metrics,) = metrics_of(tmp_path / "run")
    assert metrics["success"] > 0.2, "and has not unlearnt it"
    wrong = recipe("trl_guess_the_number.py", tmp_path / "other", "--lessons", "-1")
    assert wrong.returncode == 1
    assert "--lessons must be 0 or more" in wrong.stderr


def test_the_recipe_with_a_tool_runs_to_its_end(tmp_path: Path, say: Callable[[str], None]) -> None:
    short = ("--lessons", "100", "--updates", "2", "--episodes", "32")
    done = recipe("trl_maths_with_python.py", tmp_path / "run", *short)
    assert done.returncode == 0, done.stderr
    say("\n".join(line for line in done.stdout.splitlines() if line.startswith(("success", "tool_uses"))))
    metrics = metrics_of(tmp_path / "run")
    assert len(metrics) == 2
    assert sum(m["tool_uses"] for m in metrics) > 0, "after its lessons the model writes calls"
    wrong = recipe("trl_maths_with_python.py", tmp_path / "other", "--operation", "-")
    assert wrong.returncode == 1
    assert "--operation must be + or *" in wrong.stderr
