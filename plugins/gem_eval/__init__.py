"""Evaluation: scores of models on environments, the episode viewer, and learning curves, as an ordinary plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gem_core.plugins.hookspecs import hookimpl

__all__ = ["register_commands"]


@hookimpl
def register_commands(register: Callable[..., Any]) -> None:
    """The commands that evaluate and show."""
    for name in ("eval", "compare", "view", "plot"):
        register(name, f"gem_eval.cli.{name}")
