"""Programs: runs a program in a process of its own, as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["EXAMPLES", "run"]

EXAMPLES = Path(__file__).parents[3] / "examples"


def run(
    cwd: Path, *command: Path | str, code: int = 0, runner: str = "rl2_on_cpu", path: str = ""
) -> str:
    """Run a program, or `-m module`, with its arguments under `runner`, and return its output.

    `code`: the expected exit status. `path`: a folder to put first on the import path.
    """
    folders = [folder for folder in (path, *sys.path) if folder and not folder.endswith("mocks")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "OMP_NUM_THREADS": "1"}
    for name in (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "CUDA_VISIBLE_DEVICES",
    ):
        env.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-m", runner, *command],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
    )
    output = "\n".join(
        line for line in (done.stdout + done.stderr).splitlines() if "http_request" not in line
    )
    assert done.returncode == code, output[-4000:]
    return output
