"""Scaffold: the command `gem-rl new`, which writes a plugin project with one environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gem_core.plugins.hookspecs import hookimpl

__all__ = ["register_commands"]


@hookimpl
def register_commands(register: Callable[..., Any]) -> None:
    """Register `gem-rl new`."""
    register("new", "gem_new.cli")
