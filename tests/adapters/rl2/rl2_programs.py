"""Programs: runs a program in a process of its own, as a user does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["EXAMPLES", "run", "start"]

EXAMPLES = Path(__file__).parents[3] / "examples"


def start(
    cwd: Path, *command: Path | str, runner: str = "rl2_on_cpu", path: str = "", **env: str
) -> subprocess.Popen[str]:
    """Start a program, or `-m module`, with its arguments under `runner`.

    `path`: a folder to put first on the import path. `env`: environment variables.
    """
    folders = [folder for folder in (path, *sys.path) if folder and not folder.endswith("mocks")]
    ranks = (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "CUDA_VISIBLE_DEVICES",
    )
    inherited = {name: value for name, value in os.environ.items() if name not in ranks}
    own = {
        "PYTHONPATH": os.pathsep.join(folders),
        "OMP_NUM_THREADS": "1",
        "PYTHONFAULTHANDLER": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-m", runner, *map(str, command)],
        cwd=cwd,
        env={**inherited, **own, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(
    cwd: Path,
    *command: Path | str,
    code: int = 0,
    runner: str = "rl2_on_cpu",
    path: str = "",
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a program as `start` does, and return its output; `code`: the expected exit status."""
    program = start(cwd, *command, runner=runner, path=path, **(env or {}))
    try:
        printed, _ = program.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        program.send_signal(signal.SIGABRT)  # prints the stack of each thread
        program.wait()
        os.killpg(program.pid, signal.SIGKILL)  # its server and router hold the pipe
        printed, _ = program.communicate()
    output = "\n".join(line for line in printed.splitlines() if "http_request" not in line)
    assert program.returncode == code, output[-4000:]
    return output
