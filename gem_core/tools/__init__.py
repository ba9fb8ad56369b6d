"""Tools: what a model may call besides acting on its environment, found by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gem_core.registry import EntryPoint, Names, check_entry_point

__all__ = ["ToolSpec", "register_tool", "tools"]


@dataclass(frozen=True)
class ToolSpec:
    """What is known of a tool without importing it."""

    name: str
    entry_point: EntryPoint
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""
    extra: str = ""


tools: Names[ToolSpec] = Names("tool")


def register_tool(name: str, entry_point: EntryPoint, *, replace: bool = False, **facts: Any) -> ToolSpec:
    """Registers a tool under a name that command lines and configurations take."""
    check_entry_point(entry_point, f"tool {name!r}")
    entry = ToolSpec(name, entry_point, **facts)
    tools.add(name, entry, replace=replace)
    return entry
