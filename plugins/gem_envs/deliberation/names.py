"""Names of the deliberation wrappers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["register_deliberation"]

_WRAPPERS = "gem_envs.deliberation.wrappers"


def register_deliberation(register: Callable[..., Any]) -> None:
    """Register `plan`, `reflect` and `memory`."""
    register("plan", f"{_WRAPPERS}:Plan", summary="asks for a plan before the first action")
    register("reflect", f"{_WRAPPERS}:Reflect", summary="asks what the last actions have shown")
    register(
        "memory",
        f"{_WRAPPERS}:Memory",
        summary="asks for notes that replace the conversation so far",
    )
