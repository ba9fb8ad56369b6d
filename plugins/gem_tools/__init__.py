"""Tools: what a model may call besides acting on its environment, found by name. Those that come with gem are a plugin too.

A registered tool is also a wrapper of the same name, so that `wrappers: [react, python, concat_chat]` puts it to use.
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
    """What is known of a tool without importing it."""

    name: str
    entry_point: EntryPoint
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""
    extra: str = ""

    def load(self) -> Callable[..., Any]:
        """The class or function behind the entry point."""
        return load_entry_point(self.entry_point, f"tool {self.name!r}", self.extra)


tools: Catalog[ToolSpec] = Catalog("tool", "gem-rl tools")


def register_tool(
    name: str, entry_point: EntryPoint, *, replace: bool = False, **facts: Any
) -> ToolSpec:
    """Registers a tool, and a wrapper of the same name that puts it around an environment."""
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
    """Makes a registered tool; an argument it does not take is refused."""
    spec = tools.get(name)
    build = spec.load()
    arguments = {**spec.kwargs, **kwargs}
    try:
        inspect.signature(build).bind(**arguments)
    except TypeError as error:
        takes = ", ".join(inspect.signature(build).parameters) or "no arguments"
        raise ConfigError(
            f"the tool {name!r} cannot be made from {arguments!r} ({error}); it takes: {takes}"
        ) from None
    made = build(**arguments)
    if not isinstance(made, (Tool, Toolset)):
        raise RegistrationError(
            f"the entry point of the tool {name!r} returned {type(made).__name__}; it must return a Tool or Toolset"
        )
    return made


@hookimpl
def register_tools(register: Callable[..., Any]) -> None:
    """The tools that come with gem."""
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
    """The commands about tools."""
    register("tools", "gem_tools.cli.tools")
    register("index", "gem_tools.cli.index")


on_registration("register_tools", register_tool)
