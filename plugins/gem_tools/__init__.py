"""Tools that a model may call between its actions, registered by name.

A registered tool is also a wrapper with its name, as in `wrappers: [react, python, concat_chat]`.
gem's own tools are an ordinary plugin.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gem_core.env.wrapper_stack import register_wrapper
from gem_core.errors import ConfigError, RegistrationError
from gem_core.plugins.catalog import Catalog
from gem_core.plugins.entry_points import EntryPoint, check_entry_point, load_entry_point
from gem_core.plugins.hookspecs import hookimpl
from gem_core.plugins.manager import on_registration
from gem_tools.arguments import did_you_mean
from gem_tools.tool import Tool, ToolCall, ToolError, ToolResult, Toolset

__all__ = [
    "Tool",
    "ToolCall",
    "ToolError",
    "ToolResult",
    "ToolSpec",
    "Toolset",
    "make_tool",
    "register_tool",
    "tools",
]


@dataclass(frozen=True)
class ToolSpec:
    """The registration of a tool, readable without importing the tool."""

    name: str
    entry_point: EntryPoint
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""
    extra: str = ""

    def load(self) -> Callable[..., Any]:
        """Import the class or function of the entry point."""
        return load_entry_point(self.entry_point, f"tool {self.name!r}", self.extra)


tools: Catalog[ToolSpec] = Catalog("tool", "gem-rl tools")


def register_tool(
    name: str, entry_point: EntryPoint, *, replace: bool = False, **facts: Any
) -> ToolSpec:
    """Register a tool and a wrapper of the same name that adds it to an environment."""
    check_entry_point(entry_point, f"tool {name!r}")
    entry = ToolSpec(name, entry_point, **facts)
    register_wrapper(
        name,
        "gem_tools.wrapper:wrap_with",
        replace=replace,
        kwargs={"tool": name},
        kind="tool",
        summary=entry.summary,
        extra=entry.extra,
    )
    tools.add(name, entry, replace=replace)
    return entry


def make_tool(name: str, **kwargs: Any) -> Tool | Toolset:
    """Create a registered tool; raise `ConfigError` for arguments it does not accept."""
    spec = tools.get(name)
    build = spec.load()
    arguments = {**spec.kwargs, **kwargs}
    try:
        inspect.signature(build).bind(**arguments)
    except TypeError as error:
        from gem_tools.wrapper import SETTINGS

        own = tuple(inspect.signature(build).parameters)
        known = own + SETTINGS
        hint = did_you_mean((key for key in arguments if key not in known), known)
        raise ConfigError(
            f"the tool {name!r} cannot be made: {error}{hint}; "
            f"it takes: {', '.join(own) or 'no arguments'}; "
            f"as a wrapper it also takes: {', '.join(SETTINGS)}"
        ) from None
    tool = build(**arguments)
    if not isinstance(tool, (Tool, Toolset)):
        raise RegistrationError(
            f"the entry point of the tool {name!r} returned {type(tool).__name__}; "
            "it must return a Tool or Toolset"
        )
    return tool


@hookimpl
def register_tools(register: Callable[..., Any]) -> None:
    """Register gem's own tools."""
    register(
        "python",
        "gem_tools.python:PythonTool",
        summary="runs Python in a sandbox and shows what it prints",
    )
    register(
        "search",
        "gem_tools.search:SearchTool",
        summary="searches a local index of texts",
        extra="search",
    )
    register(
        "retrieval",
        "gem_tools.retrieval:RetrievalTool",
        summary="asks a retrieval server over HTTP",
        extra="http",
    )
    register(
        "mcp", "gem_tools.mcp:McpTools", summary="the tools of MCP servers, discovered", extra="mcp"
    )


@hookimpl
def register_commands(register: Callable[..., Any]) -> None:
    """Register the commands `gem-rl tools` and `gem-rl index`."""
    register("tools", "gem_tools.cli.tools")
    register("index", "gem_tools.cli.index")


on_registration("register_tools", register_tool)
