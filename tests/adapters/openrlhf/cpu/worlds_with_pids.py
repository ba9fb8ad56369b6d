"""An environment that reports the process it runs in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from worlds import Echo

__all__ = ["Where"]


class Where(Echo):
    """Adds the process id, the program and the parent's program to the info of every step."""

    def on_step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().on_step(action)
        program = Path("/proc/self/cmdline").read_bytes().decode().split("\0")[0]
        parent = Path(f"/proc/{os.getppid()}/comm").read_text(encoding="utf-8").strip()
        info = {**info, "pid": os.getpid(), "program": program, "parent": parent}
        return observation, reward, terminated, truncated, info
