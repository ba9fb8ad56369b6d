"""Tool: something a model may call besides acting on its environment. It takes named arguments and gives a text back.

A tool is shared by all episodes, so it keeps nothing of an episode itself: what it wants to remember it returns as
`ToolResult.state`, and the wrapper hands it to the next call of the same episode.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gem_core.errors import GemError

__all__ = ["Tool", "ToolCall", "ToolError", "ToolResult", "Toolset", "as_schema"]


class ToolError(GemError, RuntimeError):
    """Raised when a tool itself is broken (its process, server or index), not when the model used it wrongly."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model wrote it."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    """Given by models with function calling; repeated in the result."""
    problem: str = ""
    """Why the call cannot be read; empty where it can."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call gave."""

    text: str
    """Shown to the model."""
    error: bool = False
    """Whether the call failed, by the model's fault or not."""
    outage: bool = False
    """Whether the tool itself was broken: the model could not have done better."""
    state: Any = None
    """Plain data for the next call of the episode; None keeps what there was."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """For logs and tests, not shown to the model."""


class Tool:
    """The base of every tool. Subclasses set the fields and write `call`."""

    name: str = ""
    description: str = ""
    parameters: Mapping[str, Any] = {"type": "object", "properties": {}}
    """A JSON schema of the arguments."""
    main_argument: str = ""
    """The argument that the body of a tag fills, as in `<python>print(1)</python>`; empty where there is none."""
    example: str = ""
    """What the main argument looks like, for the instructions."""
    deterministic: bool = True
    """Whether equal calls give equal results."""
    blocking: ClassVar[bool] = True
    """Whether `call` may take long without being async; the engine then runs it on a thread."""

    def call(
        self, arguments: Mapping[str, Any], state: Any = None
    ) -> ToolResult | Awaitable[ToolResult]:
        """Runs one call. `state` is what the last call of this episode returned, None at first."""
        raise NotImplementedError(f"{type(self).__name__} does not define call(arguments, state)")

    def close(self) -> None:
        """Gives resources back that no other tool shares."""

    @classmethod
    def status(cls) -> str:
        """One line for `gem-rl tools`: what this machine offers the tool."""
        return "ready"


class Toolset:
    """Several tools that are only known once somebody was asked, such as those of MCP servers."""

    def tools(self) -> Sequence[Tool] | Awaitable[Sequence[Tool]]:
        """The tools there are now. May block; the engine then asks on a thread."""
        raise NotImplementedError(f"{type(self).__name__} does not define tools()")

    def begin(self) -> None:
        """Called at each reset, before `tools`. May block."""

    def twin(self) -> Toolset:
        """For another environment made with the same arguments: this one, unless it serves one environment only."""
        return self

    def close(self) -> None:
        """Gives resources back that no other tool shares."""

    @classmethod
    def status(cls) -> str:
        """One line for `gem-rl tools`: what this machine offers the tools."""
        return "ready"


def as_schema(tool: Tool) -> dict[str, Any]:
    """A tool as models with function calling are told of it."""
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }
    return {"type": "function", "function": function}
