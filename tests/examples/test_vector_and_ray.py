"""The vector example runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from project import ROOT


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "vector_and_ray.py"), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_example_steps_a_vector_and_plays_a_batch(mode: str) -> None:
    output = run("--mode", mode, "--num-envs", "4", "--steps", "12")
    assert re.search(r"vector: [\d,]+ steps/s, \d+ episodes, mean return 0\.\d+", output)
    assert "batch: 4 episodes, 0 failed" in output


def test_all_modes_play_the_same_episodes() -> None:
    outcomes = {
        re.sub(r"[\d,]+ steps/s", "", run("--mode", mode, "--num-envs", "3", "--steps", "9"))
        for mode in ("sync", "async")
    }
    assert len(outcomes) == 1
