"""Mock of launchpad's local processes: the one name that oat uses."""

from __future__ import annotations

from typing import Any


class PythonProcess:
    """Environment variables of a process, such as its devices. The mock ignores them."""

    def __init__(self, env: Any = None) -> None:
        self.env = env
