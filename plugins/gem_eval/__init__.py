"""Evaluation plugin: model scores on environments, the episode viewer and learning curves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gem_core.plugins.hookspecs import hookimpl

__all__ = ["register_commands"]


@hookimpl
def register_commands(register: Callable[..., Any]) -> None:
    """Register the commands `eval`, `suite`, `compare`, `view`, `plot` and `export`."""
    for name in ("eval", "suite", "compare", "view", "plot", "export"):
        register(name, f"gem_eval.cli.{name}")
