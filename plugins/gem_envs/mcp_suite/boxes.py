"""Boxes: how the suite starts a server, isolated from the machine and from other episodes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from gem_tools.sandbox import seccomp
from gem_tools.session.box import box_command, python

__all__ = ["DATA", "SERVERS", "boxed_server"]

DATA = "/data"
"""The folder of an episode, as its servers see it."""
SERVERS = Path(__file__).with_name("servers")
_MB = 1 << 20
_LIMITS = {
    "RLIMIT_AS": 4096 * _MB,
    "RLIMIT_FSIZE": 64 * _MB,
    "RLIMIT_NOFILE": 256,
    "RLIMIT_CORE": 0,
}


def boxed_server(
    server: str,
    arguments: Sequence[str],
    folders: Mapping[str, str],
    uid: int,
) -> dict[str, Any]:
    """Return the configuration of an MCP server in a box, for `McpTools`.

    `server` is a script or `module:function`; `folders` maps paths in the box to folders of the
    machine. As root, the server runs as the user `uid`.
    """
    executable, prefix = python()
    settings = {
        "uid": uid,
        "limits": _LIMITS,
        "seccomp": seccomp.SERVICES.hex(),
        "server": server,
        "arguments": list(arguments),
    }
    visible = [prefix, os.path.realpath(sys.prefix)]
    if server.endswith(".py"):
        visible.append(server)
    # The interpreter of the virtual environment finds the packages.
    program = [sys.executable, "-B", "-c", _start(), json.dumps(settings)]
    command = box_command(
        program,
        uid=1000,
        capabilities=("CAP_SETUID", "CAP_SETGID"),
        visible=visible,
        folders=folders,
    )
    environment = {
        "PATH": f"/usr/bin:/bin:{os.path.dirname(executable)}",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "Agent",
        "GIT_AUTHOR_EMAIL": "agent@example.com",
        "GIT_COMMITTER_NAME": "Agent",
        "GIT_COMMITTER_EMAIL": "agent@example.com",
    }
    return {"command": command[0], "args": command[1:], "env": environment}


@cache
def _start() -> str:
    return (SERVERS / "start.py").read_text(encoding="utf-8")
