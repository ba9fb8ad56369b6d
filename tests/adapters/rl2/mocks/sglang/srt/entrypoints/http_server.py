"""How RL2's release starts a server: in a process it has made."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sglang.srt.server_args import ServerArgs

SERVER = Path(__file__).parents[4] / "sglang_server.py"


def command(args: ServerArgs) -> list[str]:
    """The server's command line."""
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
    """Becomes another program: torch must not be used in a process that was forked from one that uses it."""
    line = command(args)
    os.execve(line[0], line, {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
