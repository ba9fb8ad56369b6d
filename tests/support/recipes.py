"""Helpers that run a recipe of examples/ as a user does, and interrupt it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from project import ROOT

from gem_core.training.metrics_file import read_metrics

__all__ = ["METRICS", "interrupt_recipe", "run_recipe"]

METRICS = {
    "step",
    "success",
    "return",
    "turns",
    "failed",
    "episodes",
    "tokens",
    "advantage_abs",
    "seconds",
    "loss",
    "grad_norm",
}
"""The keys of every line of metrics.jsonl."""


def _start(name: str, out: Path, *arguments: str) -> subprocess.Popen[str]:
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, str(ROOT / "examples" / name), "--out", str(out), *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )


def run_recipe(name: str, out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a recipe of examples/ to its end."""
    with _start(name, out, *arguments) as process:
        printed, errors = process.communicate(timeout=1200)
    return subprocess.CompletedProcess(process.args, process.returncode, printed, errors)


def interrupt_recipe(name: str, out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a recipe and press Ctrl-C after its third update."""
    process = _start(name, out, *arguments)
    try:
        deadline = time.monotonic() + 600
        while process.poll() is None and time.monotonic() < deadline:
            if (out / "metrics.jsonl").exists() and len(read_metrics(out)) >= 3:
                break
            time.sleep(0.2)
        for _ in range(3):  # Python ignores a Ctrl-C that comes inside a callback or a `__del__`
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                printed, errors = process.communicate(timeout=120)
                break
        else:
            raise AssertionError("the recipe runs on after Ctrl-C")
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, printed, errors)
