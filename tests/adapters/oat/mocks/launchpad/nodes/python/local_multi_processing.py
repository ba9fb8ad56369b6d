"""The one name oat uses."""

from __future__ import annotations

from typing import Any


class PythonProcess:
    """Which devices a process may see: without meaning where there are none."""

    def __init__(self, env: Any = None) -> None:
        self.env = env
