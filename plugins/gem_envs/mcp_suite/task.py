"""Suite task: an instruction, the initial data of the servers, and a check of the final data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["LEVELS", "Call", "Setup", "SuiteTask", "Template"]

LEVELS = ("easy", "medium", "hard")

Call = tuple[str, Mapping[str, Any]]
"""The name of a tool and its arguments."""
Setup = Any
"""The initial data; each family defines the type."""


@dataclass(frozen=True, slots=True)
class SuiteTask:
    """A task on MCP servers."""

    instruction: str
    setup: Setup
    check: Callable[[Any], bool]
    """Whether the final state solves the task; gem calls it outside of the servers' boxes."""
    solution: tuple[Call, ...]
    """Calls that solve the task; gem's own tests run them for every template."""


@dataclass(frozen=True, slots=True)
class Template:
    """A kind of task: its level and the function that draws one."""

    level: str
    draw: Callable[[Any], SuiteTask]
