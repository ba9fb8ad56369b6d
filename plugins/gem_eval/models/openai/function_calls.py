"""Function calls: between a chat server's `tool_calls` and the text that an environment parses.

An action with calls is the answer's text followed by one block per call:

    <tool_call>
    {"name": "python", "arguments": {"code": "print(1)"}, "id": "call_1"}
    </tool_call>

A block keeps all fields of its call, so later requests send the call back as the server wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gem_core.types import Message

__all__ = ["calls_as_text", "chat_messages"]

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_JSON = json.JSONDecoder()
_SEE_FIRST = "The result of the first call shows the results of all calls."


def calls_as_text(content: str, calls: Sequence[Any]) -> str:
    """Return an answer's text with its function calls."""
    return "\n".join([*([content] if content else []), *map(_block, calls)])


def chat_messages(
    messages: Sequence[Message],
    *,
    function_calling: bool,
    reasoning: Mapping[str, Mapping[str, str]] | None = None,
) -> list[dict[str, Any]]:
    """Convert a conversation to the messages of a request.

    With function calling, calls in assistant messages become `tool_calls`, and the observation
    after them has the role `tool`. Without it, tool results have the role `user`: servers accept a
    `tool` message only after a call that the request contains. `reasoning` has extra fields for
    assistant messages with calls, by their text.
    """
    converted: list[dict[str, Any]] = []
    pending: list[str] = []
    for position, message in enumerate(messages):
        calls: list[dict[str, Any]] = []
        content = message.content
        if function_calling and message.role == "assistant" and position + 1 < len(messages):
            content, calls = _split(message.content, len(converted))
        if pending and message.role != "assistant":
            converted += [
                {"role": "tool", "tool_call_id": id, "content": _SEE_FIRST if i else content}
                for i, id in enumerate(pending)
            ]
            pending = []
            continue
        role = message.role if message.role in ("system", "user", "assistant") else "user"
        converted.append({"role": role, "content": content})
        if calls:
            converted[-1] |= {"content": content or None, "tool_calls": calls}
            converted[-1] |= (reasoning or {}).get(message.content, {})
            pending = [call["id"] for call in calls]
    return converted


def _block(call: Any) -> str:
    data: Any = call
    if isinstance(call, Mapping):
        function = call.get("function")
        function = function if isinstance(function, Mapping) else {}
        rest = {k: v for k, v in call.items() if k not in ("function", "type", "index")}
        arguments = _parsed(function.get("arguments"))
        data = {"name": function.get("name"), "arguments": arguments, **rest}
    text = json.dumps(data, ensure_ascii=False)
    # tool parsers skip what looks like thinking
    return f"{_OPEN}\n{text.replace('think>', 'think' + chr(92) + 'u003e')}\n{_CLOSE}"


def _parsed(arguments: Any) -> Any:
    """Parse arguments that are a JSON object in a string; return others as they are."""
    try:
        parsed = json.loads(arguments)
    except (TypeError, ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _split(text: str, number: int) -> tuple[str, list[dict[str, Any]]]:
    """Split an action into its text and its calls; `number` makes new ids unique."""
    content, position = text, text.find(_OPEN)
    calls: list[dict[str, Any]] = []
    while position >= 0:
        try:
            data, end = _JSON.raw_decode(text, _skip_space(text, position + len(_OPEN)))
        except (ValueError, RecursionError):
            return text, []
        end = _skip_space(text, end)
        if not isinstance(data, dict) or not text.startswith(_CLOSE, end):
            return text, []
        if not calls:
            content = text[:position].rstrip("\n")
        calls.append(_call(data, f"call{number:02d}{len(calls):03d}"))
        position = text.find(_OPEN, end)
    return content, calls


def _call(data: Mapping[str, Any], otherwise: str) -> dict[str, Any]:
    """Return a call as servers write it, with the id `otherwise` if it has none."""
    rest = {k: v for k, v in data.items() if k not in ("name", "arguments", "id")}
    arguments = data.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    function = {"name": str(data.get("name") or ""), "arguments": arguments}
    id = str(data.get("id") or otherwise)
    return {**rest, "id": id, "type": "function", "function": function}


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position
