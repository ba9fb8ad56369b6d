"""Environment checker: `check_env` and the command `gem-rl check`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gem_core.plugins.hookspecs import hookimpl

__all__ = ["register_commands"]


@hookimpl
def register_commands(register: Callable[..., Any]) -> None:
    """Register `gem-rl check` and `gem-rl play`."""
    register("check", "gem_check.cli")
    register("play", "gem_check.play")
