r"""More call styles: fenced code blocks, and the XML of the reference's MCP tool.

| style   | what the model writes                                                              |
|---------|------------------------------------------------------------------------------------|
| `block` | a code block whose language is the tool: ```` ```python\nprint(1)\n``` ````         |
| `xml`   | `<tool_call><tool_name>python</tool_name><arguments>{...}</arguments></tool_call>` |
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gem_core.wrappers.formats import without_surrogates
from gem_tools.code_blocks import code_blocks
from gem_tools.tool import Tool, ToolCall, as_schema

__all__ = [
    "MODEL_JSON",
    "find_blocks",
    "find_xml",
    "show_blocks",
    "show_xml",
    "write_block",
    "write_xml",
]

_XML = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_NAME = re.compile(r"<tool_name>(.*?)</tool_name>", re.DOTALL)
_ARGUMENTS = re.compile(r"<arguments>(.*?)</arguments>", re.DOTALL)


class _Decoder(json.JSONDecoder):
    """A JSON decoder that replaces lone surrogates, as in `"\\ud83d"`: no tool can send them."""

    def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
        value, end = super().raw_decode(s, idx)
        return _clean(value), end


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {without_surrogates(key): _clean(item) for key, item in value.items()}
    return value


MODEL_JSON = _Decoder(strict=False)  # models put line breaks into strings
"""The decoder of JSON that models write."""


def find_blocks(text: str, tools: Mapping[str, Tool]) -> list[ToolCall]:
    """Find the code blocks whose language is the name of a tool; others are plain text."""
    calls = []
    for name, body in code_blocks(text):
        tool = tools.get(name)
        if tool is not None and tool.main_argument:
            calls.append(ToolCall(name, {tool.main_argument: body.strip("\r\n")}))
        elif tool is not None:
            calls.append(_with_json(name, body))
    return calls


def find_xml(text: str) -> list[ToolCall]:
    """Find the `<tool_call>` elements with a name and JSON arguments."""
    calls = []
    for body in _XML.findall(text):
        name, arguments = _NAME.search(body), _ARGUMENTS.search(body)
        if name is None or not name[1].strip():
            calls.append(ToolCall("", problem="The <tool_call> has no <tool_name>."))
        else:
            calls.append(_with_json(name[1].strip(), arguments[1] if arguments else ""))
    return calls


def write_block(call: ToolCall, tool: Tool | None = None) -> str:
    """Write a call as a code block."""
    body = json.dumps(dict(call.arguments), ensure_ascii=False)
    if tool is not None and set(call.arguments) == {tool.main_argument}:
        body = str(call.arguments[tool.main_argument])
    return f"```{call.name}\n{body}\n```"


def write_xml(call: ToolCall) -> str:
    """Write a call as XML."""
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
    return (
        f"<tool_call><tool_name>{call.name}</tool_name>"
        f"<arguments>{arguments}</arguments></tool_call>"
    )


def show_blocks(tools: Sequence[Tool]) -> list[str]:
    """Return the lines of the instructions for code blocks."""
    lines = ["To call a tool, write a code block with its name; the result comes back first."]
    for tool in tools:
        properties = tool.parameters.get("properties") or {}
        body = tool.example or "..."
        if not tool.main_argument:
            body = json.dumps(dict.fromkeys(properties, "..."))
        lines.append(f"\n```{tool.name}\n{body}\n```\n{tool.description}")
    return lines


def show_xml(tools: Sequence[Tool]) -> list[str]:
    """Return the lines of the instructions for XML."""
    form = "<tool_call><tool_name>NAME</tool_name><arguments>JSON OBJECT</arguments></tool_call>"
    lines = [f"To call one, write {form}; the result comes back first."]
    lines.append("The tools, as JSON schemas:")
    return lines + [json.dumps(as_schema(tool), ensure_ascii=False) for tool in tools]


def _with_json(name: str, text: str) -> ToolCall:
    if not text.strip():
        return ToolCall(name)
    try:
        arguments = MODEL_JSON.decode(text.strip())
    except (ValueError, RecursionError) as error:
        return ToolCall(name, problem=f"The arguments are not a JSON object ({error}).")
    if not isinstance(arguments, dict):
        kind = type(arguments).__name__
        return ToolCall(name, problem=f"The arguments must be a JSON object, not {kind}.")
    return ToolCall(name, arguments)
