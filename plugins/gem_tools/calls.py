r"""Tool calls: writing them, and finding them in a model's text.

| style    | what the model writes                                                             |
|----------|-----------------------------------------------------------------------------------|
| `tag`    | `<python>print(1)</python>`: the body is the tool's main argument, or JSON        |
|          | if the tool has none                                                              |
| `json`   | `<tool_call>{"name": "python", "arguments": {"code": "print(1)"}}</tool_call>`    |
| `block`  | a code block with the tool's name as its language; see `more_styles`              |
| `xml`    | `<tool_call><tool_name>...</tool_name><arguments>{...}</arguments></tool_call>`   |
| `native` | any format of models trained for function calling: as `json`, a bare JSON object, |
|          | `[TOOL_CALLS]` and a list, or a chat server's assistant message with `tool_calls` |

Text between `<think>` and `</think>` is never a call, nor is the text before a first `</think>`
without a `<think>`: some chat templates write the `<think>` themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from gem_core.errors import ConfigError
from gem_core.wrappers.formats import without_surrogates
from gem_tools.more_styles import (
    MODEL_JSON,
    find_blocks,
    find_xml,
    show_blocks,
    show_xml,
    write_block,
    write_xml,
)
from gem_tools.tool import Tool, ToolCall, as_schema

__all__ = [
    "Style",
    "check_arguments",
    "check_style",
    "find_calls",
    "instruction",
    "message_calls",
    "message_text",
    "without_thinking",
    "write_call",
]

Style = Literal["tag", "json", "native", "block", "xml"]

_THINK, _END_THINK = "<think>", "</think>"
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_BARE = re.compile(r"\s*(?:<\|python_tag\|>|\[TOOL_CALLS\])?\s*([\[{])")
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (dict,),
    "null": (type(None),),
}


def find_calls(text: str, tools: Mapping[str, Tool], style: Style = "tag") -> list[ToolCall]:
    """Find the calls in a text, in order; a call that cannot be parsed has a `problem`."""
    text = without_surrogates(without_thinking(text))
    if style == "tag":
        return _tagged(text, tools)
    if style == "json":
        return _json_calls(text)
    if style == "block":
        return find_blocks(text, tools)
    if style == "xml":
        return find_xml(text)
    check_style(style)
    return _native(text)


def without_thinking(text: str) -> str:
    """Remove the thinking from a text.

    The text before a first `</think>` without a `<think>` is thinking too: some chat templates
    write the `<think>` themselves. A `<think>` that is never closed stays; it may not be thinking.
    """
    before, end_think, after = text.partition(_END_THINK)
    if end_think and _THINK not in before:
        text = after
    parts, position = [], 0
    while (begin := text.find(_THINK, position)) >= 0:
        end = text.find(_END_THINK, begin)
        if end < 0:
            break
        parts.append(text[position:begin])
        position = end + len(_END_THINK)
    return "".join([*parts, text[position:]])


def check_style(style: object) -> None:
    """Raise `ConfigError` for an unknown style."""
    styles = get_args(Style)
    if style not in styles:
        raise ConfigError(f"style must be one of {', '.join(map(repr, styles))}; got {style!r}")


def message_calls(message: Mapping[str, Any]) -> list[ToolCall]:
    """Return the calls of a chat server's assistant message."""
    return [_from_data(call) for call in message.get("tool_calls") or ()]


def message_text(message: Mapping[str, Any]) -> str:
    """Convert a chat server's assistant message to an action text that `find_calls` can parse."""
    parts = [str(message["content"])] if message.get("content") else []
    parts += [write_call(call, "json") for call in message_calls(message)]
    return "\n".join(parts)


def write_call(call: ToolCall, style: Style = "tag", tool: Tool | None = None) -> str:
    """Write a call as a model would."""
    if style == "tag":
        if tool is not None and set(call.arguments) == {tool.main_argument}:
            return f"<{call.name}>{call.arguments[tool.main_argument]}</{call.name}>"
        return f"<{call.name}>{json.dumps(call.arguments, ensure_ascii=False)}</{call.name}>"
    if style == "block":
        return write_block(call, tool)
    if style == "xml":
        return write_xml(call)
    body = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
    return f"{_OPEN}\n{body}\n{_CLOSE}"


def instruction(tools: Sequence[Tool], style: Style = "tag", max_uses: int | None = None) -> str:
    """Return the instructions on the tools for the model."""
    if not tools:
        return ""
    budget = "" if max_uses is None else f" You may make {max_uses} tool calls in all."
    lines = [f"You can use tools before you answer.{budget}"]
    if style == "tag":
        lines.append("To call a tool, write its tag; the result comes back before you go on.")
        for tool in tools:
            body = tool.example or "..." if tool.main_argument else _example(tool)
            lines.append(f"\n<{tool.name}>{body}</{tool.name}>\n{tool.description}")
    elif style == "block":
        lines += show_blocks(tools)
    elif style == "xml":
        lines += show_xml(tools)
    else:
        lines.append(
            f'To call one, write {_OPEN}{{"name": <name>, "arguments": <object>}}{_CLOSE}; '
            "the result comes back first."
        )
        lines.append("The tools, as JSON schemas:")
        lines += [json.dumps(as_schema(tool), ensure_ascii=False) for tool in tools]
    return "\n".join(lines)


def check_arguments(tool: Tool, arguments: Mapping[str, Any]) -> str:
    """Return what is wrong with the arguments of a call, as a message to the model, or ""."""
    known: Mapping[str, Any] = tool.parameters.get("properties") or {}
    missing = [name for name in tool.parameters.get("required") or () if name not in arguments]
    if missing:
        return f"{tool.name} needs the argument(s) {', '.join(missing)}."
    unknown = [name for name in arguments if name not in known]
    if unknown and known:
        return f"{tool.name} does not take {', '.join(unknown)}; it takes {', '.join(known)}."
    for name, value in arguments.items():
        expected = known[name].get("type") if isinstance(known.get(name), Mapping) else None
        names = [expected] if isinstance(expected, str) else list(expected or ())
        allowed = tuple(t for n in names for t in _TYPES.get(n, (object,)))
        if allowed and (
            not isinstance(value, allowed)
            or (isinstance(value, bool) and not {"boolean", "null"} & set(names))
        ):
            shown = json.dumps(value, ensure_ascii=False, default=str)[:80]
            return f"{name} of {tool.name} must be {' or '.join(names)}, not {shown}."
    return ""


def _tagged(text: str, tools: Mapping[str, Tool]) -> list[ToolCall]:
    if not tools:
        return []
    last = {name: text.rfind(f"</{name}>") for name in tools}
    calls = []
    position = 0
    opening = re.compile("<(" + "|".join(re.escape(name) for name in tools) + ")>")
    while (tag := opening.search(text, position)) is not None:
        close = f"</{tag[1]}>"
        if last[tag[1]] < tag.end():  # an unclosed tag is not a call; a later tag may be one
            position = tag.end()
            continue
        end = text.find(close, tag.end())
        body, tool = text[tag.end() : end], tools[tag[1]]
        position = end + len(close)
        if tool.main_argument:
            argument = body.strip("\r\n") if "\n" in body else body.strip()
            calls.append(ToolCall(tool.name, {tool.main_argument: argument}))
        else:
            calls.append(_from_text(body, tool.name))
    return calls


def _json_calls(text: str) -> list[ToolCall]:
    calls = []
    position = text.find(_OPEN)
    while position >= 0:
        start = position + len(_OPEN)
        while start < len(text) and text[start].isspace():
            start += 1
        try:
            data, end = MODEL_JSON.raw_decode(text, start)
            calls.append(_from_data(data))
        except (ValueError, RecursionError) as error:
            end = text.find(_CLOSE, start)
            if end < 0:
                break  # never closed: the text was cut off or only mentions calls
            problem = f"The text in {_OPEN} is not a JSON object ({_reason(error)})."
            calls.append(ToolCall("", problem=problem))
        position = text.find(_OPEN, end)
    return calls


def _native(text: str) -> list[ToolCall]:
    bare = _BARE.match(text)
    if bare is not None:
        try:
            data, _ = MODEL_JSON.raw_decode(text, bare.start(1))
        except (ValueError, RecursionError):
            data = None
        if isinstance(data, dict) and isinstance(data.get("tool_calls"), list):
            return message_calls(data)
        if isinstance(data, dict) and isinstance(data.get("name"), str):
            return [_from_data(data)]
        items = data if isinstance(data, list) else []
        if items and all(isinstance(item, dict) and "name" in item for item in items):
            return [_from_data(item) for item in items]
    return _json_calls(text)


def _from_data(data: Any) -> ToolCall:
    """Parse a call from JSON: `{"name", "arguments"}`, maybe inside `function`.

    `parameters` is accepted for `arguments`.
    """
    if not isinstance(data, Mapping):
        problem = f"A call is a JSON object with name and arguments, not {type(data).__name__}."
        return ToolCall("", problem=problem)
    id = str(data.get("id") or "")
    inner = data.get("function")
    if isinstance(inner, Mapping):
        data = inner
    name = data.get("name")
    if not isinstance(name, str) or not name:
        return ToolCall("", id=id, problem='The call has no "name".')
    arguments = data.get("arguments", data.get("parameters"))
    if isinstance(arguments, str):
        call = _from_text(arguments, name)
        return ToolCall(name, call.arguments, id, call.problem)
    if arguments is not None and not isinstance(arguments, Mapping):
        problem = f'"arguments" must be a JSON object, not {type(arguments).__name__}.'
        return ToolCall(name, id=id, problem=problem)
    return ToolCall(name, dict(arguments or {}), id)


def _from_text(text: str, name: str) -> ToolCall:
    if not text.strip():
        return ToolCall(name)
    try:
        arguments = MODEL_JSON.decode(text.strip())
    except (ValueError, RecursionError) as error:
        return ToolCall(name, problem=f"The arguments are not a JSON object ({_reason(error)}).")
    if not isinstance(arguments, dict):
        problem = f"The arguments must be a JSON object, not {type(arguments).__name__}."
        return ToolCall(name, problem=problem)
    return ToolCall(name, arguments)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, ValueError) else "too deeply nested"


def _example(tool: Tool) -> str:
    known = tool.parameters.get("properties") or {}
    return json.dumps({name: f"<{(known[name] or {}).get('type', 'value')}>" for name in known})
