"""Server start of RL2's release, which creates the process itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sglang.srt.server_args import ServerArgs

SERVER = Path(__file__).parents[4] / "sglang_server.py"


def command(args: ServerArgs) -> list[str]:
    """Return the server's command line."""
    return [
        sys.executable,
        str(SERVER),
        "--host",
        args.host,
        "--port",
        str(args.port),
        "--model",
        str(args.model_path),
    ]


def launch_server(args: ServerArgs) -> None:
    """Replace this process with the server, because torch does not work after a fork."""
    argv = command(args)
    os.execve(argv[0], argv, {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
