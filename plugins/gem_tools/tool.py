"""Tools: functions with named arguments and a text result that a model may call.

All episodes share a tool, so it stores nothing about an episode. It returns what it wants to
remember as `ToolResult.state`, and the wrapper passes that to the next call of the same episode.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gem_core.errors import GemError

__all__ = ["Tool", "ToolCall", "ToolError", "ToolResult", "Toolset", "as_schema", "printable"]


class ToolError(GemError, RuntimeError):
    """Raised when a tool itself (its process, server or index) fails, not for a wrong call."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call written by the model."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    """An id from a model with function calling; the result repeats it."""
    problem: str = ""
    """Why the call cannot be parsed; empty if it can."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool call."""

    text: str
    """The text for the model."""
    error: bool = False
    """Whether the call failed, for whatever reason."""
    outage: bool = False
    """Whether the tool itself failed, through no fault of the model."""
    state: Any = None
    """Plain data for the next call of the episode; None keeps the previous state."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Details for logs and tests, not shown to the model."""


class Tool:
    """Base class of all tools; subclasses set the fields and implement `call`."""

    name: str = ""
    description: str = ""
    parameters: Mapping[str, Any] = {"type": "object", "properties": {}}
    """A JSON schema of the arguments."""
    main_argument: str = ""
    """The argument that the body of a tag fills, as in `<python>print(1)</python>`; or ""."""
    example: str = ""
    """An example of the main argument, for the instructions."""
    deterministic: bool = True
    """Whether equal calls give equal results."""
    blocking: ClassVar[bool] = True
    """Whether a sync `call` may block for long; the engine then runs it on a thread."""

    def call(
        self, arguments: Mapping[str, Any], state: Any = None
    ) -> ToolResult | Awaitable[ToolResult]:
        """Run a call; `state` is the state from the episode's previous call, None at first."""
        raise NotImplementedError(f"{type(self).__name__} does not define call(arguments, state)")

    def close(self) -> None:
        """Release resources that no other tool shares."""

    @classmethod
    def status(cls) -> str:
        """Return the tool's status on this machine, in one line for `gem-rl tools`."""
        return "ready"


class Toolset:
    """A set of tools that must be discovered, such as those of MCP servers."""

    version = 0
    """Increase it when the tools have changed; environments then call `tools` again."""

    def tools(self) -> Sequence[Tool] | Awaitable[Sequence[Tool]]:
        """Return the current tools. May block; the engine then calls it on a thread."""
        raise NotImplementedError(f"{type(self).__name__} does not define tools()")

    def begin(self) -> None:
        """Prepare for an episode; called at each reset, before `tools`. May block."""

    def twin(self) -> Toolset:
        """Return the toolset for a copy of the environment: this one, if it can be shared."""
        return self

    def close(self) -> None:
        """Release resources that no other tool shares."""

    @classmethod
    def status(cls) -> str:
        """Return the tools' status on this machine, in one line for `gem-rl tools`."""
        return "ready"


_CONTROL = {
    # Commands to a terminal, except tab, newline and carriage return, which callers treat.
    **{c: f"\\x{c:02x}" for c in (*range(9), 11, 12, *range(14, 32), *range(127, 160))},
    # Marks that reorder the text around them.
    **{c: f"\\u{c:04x}" for c in (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F))},
    **{c: f"\\u{c:04x}" for c in range(0x2066, 0x206A)},
}


def printable(text: str) -> str:
    """Escape control characters and bidirectional marks."""
    return text.translate(_CONTROL)


def as_schema(tool: Tool) -> dict[str, Any]:
    """Return a tool's schema for models with function calling."""
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }
    return {"type": "function", "function": function}
