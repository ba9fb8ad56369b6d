"""Kinds: every kind of terminal task and the function that draws one."""

from __future__ import annotations

import random
from collections.abc import Callable

from gem_envs.terminal import configuration, files, logs, programs, repositories, services, text
from gem_envs.terminal.ids import TERMINAL_KINDS
from gem_envs.terminal.task import TerminalTask

__all__ = ["KINDS"]

_DRAW: dict[str, Callable[[random.Random], TerminalTask]] = {
    **configuration.KINDS,
    **files.KINDS,
    **logs.KINDS,
    **programs.KINDS,
    **repositories.KINDS,
    **services.KINDS,
    **text.KINDS,
}
KINDS = {kind: _DRAW[kind] for kind in TERMINAL_KINDS}
"""The random generator determines a task completely."""
