"""Server start of RL2's release, which creates the process itself.

Environment variables choose the program that serves: `RL2_SERVER` (by default `sglang_server.py`),
its interpreter `RL2_SERVER_PYTHON` and its import path `RL2_SERVER_PYTHONPATH`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from sglang.srt.server_args import ServerArgs

SERVER = Path(__file__).parents[4] / "sglang_server.py"


def command(args: ServerArgs) -> list[str]:
    """Return the server's command line."""
    return [
        os.environ.get("RL2_SERVER_PYTHON", sys.executable),
        os.environ.get("RL2_SERVER", str(SERVER)),
        "--host",
        args.host,
        "--port",
        str(args.port),
        "--model",
        str(args.model_path),
        "--settings",
        json.dumps(args.rest),
    ]


def launch_server(args: ServerArgs) -> None:
    """Replace this process with the server, because torch does not work after a fork."""
    argv = command(args)
    path = os.environ.get("RL2_SERVER_PYTHONPATH", os.pathsep.join(sys.path))
    os.execve(argv[0], argv, {**os.environ, "PYTHONPATH": path})
