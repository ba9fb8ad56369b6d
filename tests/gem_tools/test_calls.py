"""Tests of finding, checking and writing tool calls."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

from gem_core.errors import ConfigError
from gem_tools import Tool, ToolCall, ToolResult
from gem_tools.calls import (
    Style,
    check_arguments,
    find_calls,
    instruction,
    message_calls,
    message_text,
    write_call,
)
from gem_tools.code_blocks import code_blocks


class Python(Tool):
    name, main_argument, example = "python", "code", "print(1)"
    description = "Runs code."
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"code": {"type": "string"}},
        "required": ["code"],
    }

    def call(self, arguments: Mapping[str, Any], state: Any = None) -> ToolResult:
        return ToolResult(arguments["code"])


class Weather(Tool):
    name = "weather"
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "exact": {"type": ["boolean", "null"]},
        },
        "required": ["city"],
    }


TOOLS: dict[str, Tool] = {"python": Python(), "weather": Weather()}


def calls(text: str, style: Style = "tag") -> list[tuple[str, dict[str, Any]]]:
    parsed = find_calls(text, TOOLS, style)
    assert not any(call.problem for call in parsed), parsed
    return [(call.name, dict(call.arguments)) for call in parsed]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<python>print(1)</python>", [("python", {"code": "print(1)"})]),
        (
            "I think. <python>\nfor i in x:\n    print(i)\n</python> done",
            [("python", {"code": "for i in x:\n    print(i)"})],
        ),
        (
            '<python>1</python><weather>{"city": "Rome"}</weather>',
            [("python", {"code": "1"}), ("weather", {"city": "Rome"})],
        ),
        (
            "<python>1</python> then <python>2</python>",
            [("python", {"code": "1"}), ("python", {"code": "2"})],
        ),
        ("<python>print('<weather>')</python>", [("python", {"code": "print('<weather>')"})]),
        ("<weather>never closed <python>1</python>", [("python", {"code": "1"})]),
        ("<think><python>1</python></think> no call", []),
        # The chat template wrote the <think>; a chat server returns only what the model wrote.
        ("<python>1</python>? no</think> no call", []),
        ("hm</think> <python>1</python>", [("python", {"code": "1"})]),
        ("hm</think> <think>2</think> <python>1</python>", [("python", {"code": "1"})]),
        ("<think>a</think> <python>1</python> </think>", [("python", {"code": "1"})]),
        ("<python>cut off", []),
        ("<ruby>1</ruby>", []),
        ("<weather></weather>", [("weather", {})]),
        ("", []),
    ],
)
def test_find_calls_in_tag_style(text: str, expected: list[Any]) -> None:
    assert calls(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '<tool_call>{"name": "python", "arguments": {"code": "1"}}</tool_call>',
            [("python", {"code": "1"})],
        ),
        (
            'a\n<tool_call>\n{"name": "python", '
            '"arguments": "{\\"code\\": \\"1\\"}"}\n</tool_call>',
            [("python", {"code": "1"})],
        ),
        (
            '<tool_call>{"name": "python", "arguments": {"code": "line\nbreak"}}</tool_call>',
            [("python", {"code": "line\nbreak"})],
        ),
        (
            '<tool_call>{"name": "python", "arguments": {"code": "</tool_call>"}}</tool_call>',
            [("python", {"code": "</tool_call>"})],
        ),
        (
            '<tool_call>{"name": "a"}</tool_call><tool_call>{"name": "b"}</tool_call>',
            [("a", {}), ("b", {})],
        ),
        ('<think><tool_call>{"name": "a"}</tool_call></think>', []),
        ('<tool_call>{"name": "a"}</tool_call>? no</think> 3', []),
        ('{"name": "a"}</think> <tool_call>{"name": "b"}</tool_call>', [("b", {})]),
        ("I could write <tool_call> here", []),
    ],
)
@pytest.mark.parametrize("style", ["json", "native"])
def test_find_calls_in_json_style(text: str, expected: list[Any], style: Style) -> None:
    assert calls(text, style) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"name": "python", "parameters": {"code": "1"}}', [("python", {"code": "1"})]),
        (
            '<|python_tag|>{"name": "python", "parameters": {"code": "1"}}',
            [("python", {"code": "1"})],
        ),
        (
            '[TOOL_CALLS][{"name": "python", "arguments": {"code": "1"}}, '
            '{"name": "weather", "arguments": {"city": "Rome"}}]',
            [("python", {"code": "1"}), ("weather", {"city": "Rome"})],
        ),
        (
            '{"content": null, "tool_calls": [{"id": "x", "function": '
            '{"name": "python", "arguments": "{\\"code\\": \\"1\\"}"}}]}',
            [("python", {"code": "1"})],
        ),
        ('{"answer": 4}', []),
        ("[1, 2]", []),
        ("The answer is {4}.", []),
    ],
)
def test_find_calls_in_native_style(text: str, expected: list[Any]) -> None:
    assert calls(text, "native") == expected


def test_message_text_round_trips_through_find_calls() -> None:
    message = {
        "role": "assistant",
        "content": "Let me see.",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "python", "arguments": '{"code": "print(1)"}'},
            }
        ],
    }
    assert message_calls(message) == [ToolCall("python", {"code": "print(1)"}, "call_1")]
    text = message_text(message)
    assert text.startswith("Let me see.")
    assert calls(text, "native") == calls(text, "json") == [("python", {"code": "print(1)"})]


@pytest.mark.parametrize(
    ("text", "style", "problem"),
    [
        ("<weather>Rome</weather>", "tag", "not a JSON object"),
        ("<weather>[1]</weather>", "tag", "not list"),
        ("<tool_call>python: 1</tool_call>", "json", "not a JSON object"),
        ('<tool_call>{"arguments": {}}</tool_call>', "json", 'no "name"'),
        ('<tool_call>{"name": "python", "arguments": [1]}</tool_call>', "json", "not list"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "json", "nested"),
    ],
)
def test_malformed_call_has_a_problem(text: str, style: Style, problem: str) -> None:
    (call,) = find_calls(text, TOOLS, style)
    assert problem in call.problem


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"city": "Rome", "days": 3, "exact": None}, ""),
        ({}, "needs the argument(s) city"),
        ({"city": "Rome", "town": 1}, "does not take town"),
        ({"city": 4}, "city of weather must be string, not 4"),
        ({"city": "Rome", "days": True}, "must be integer"),
        ({"city": "Rome", "days": "3"}, "must be integer"),
        ({"city": "Rome", "exact": "yes"}, "must be boolean or null"),
    ],
)
def test_check_arguments_describes_the_problem(arguments: dict[str, Any], problem: str) -> None:
    message = check_arguments(TOOLS["weather"], arguments)
    assert (problem in message) if problem else not message


@pytest.mark.parametrize("style", ["tag", "json", "native"])
def test_write_call_round_trips_and_instruction_shows_a_call(style: Style) -> None:
    arguments = {"code": "print('<b>')"}
    text = write_call(ToolCall("python", arguments), style, TOOLS["python"])
    assert calls(text, style) == [("python", arguments)]
    text = instruction(list(TOOLS.values()), style, 3)
    assert "3 tool calls" in text
    assert "weather" in text
    if style == "tag":
        assert "<python>print(1)</python>" in text


@pytest.mark.parametrize(
    "text",
    [
        "```py\n" * 50_000,
        "<python>" * 100_000,
        "<tool_call>" * 100_000,
        "<tool_call>{" * 50_000,
        "<think>" * 100_000,
    ],
)
@pytest.mark.parametrize("style", ["tag", "json", "native", "block"])
def test_long_malformed_text_is_parsed_quickly(text: str, style: Style) -> None:
    begin = time.process_time()
    find_calls(text, TOOLS, style)
    assert time.process_time() - begin < 2.0


def test_unknown_style_is_rejected() -> None:
    with pytest.raises(ConfigError, match="style must be one of 'tag', 'json'"):
        find_calls("x", TOOLS, "yaml")  # type: ignore[arg-type]


def test_code_blocks_are_calls_in_the_style_block() -> None:
    tools = {"python": PythonLike(), "lookup": Lookup()}
    text = 'I compute.\n```python\nprint(1)\nprint(2)\n```\nand\n```lookup\n{"key": 3}\n```'
    assert find_calls(text, tools, "block") == [
        ToolCall("python", {"code": "print(1)\nprint(2)"}),
        ToolCall("lookup", {"key": 3}),
    ]
    assert find_calls("```js\nalert(1)\n```\n```python\nunclosed", tools, "block") == []
    assert find_calls("<think>```python\n1\n```</think>", tools, "block") == []
    (wrong,) = find_calls("```lookup\nnot JSON\n```", tools, "block")
    assert "not a JSON object" in wrong.problem


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("```\na\n```", [("", "a\n")]),
        ("```text\na\n```\nb\n```text\nc\n```", [("text", "a\n"), ("text", "c\n")]),
        ("So: ```py\na\n```\n", [("py", "a\n")]),
        ("1. ```py\n   a\n   ```\n", [("py", "   a\n")]),
        ("``` py title\na\n```", [("py", "a\n")]),
        ("- x\n  ```py\n  a\n    b\n  ```", [("py", "a\n  b\n")]),
        ("```py:\na\n```", [("py", "a\n")]),
        ("in a block (```).\n```py\na\n```", [("py", "a\n")]),
        ('it starts with "```py".\n```py\na\n```', [("py", "a\n")]),
        ("Here: ```\n```py\na\n```", [("py", "a\n")]),
        ("```py\na\n```This is a.\n```text\nb\n```", [("py", "a\n"), ("text", "b\n")]),
        ("````py\na = '''\n```\n'''\n````\nb", [("py", "a = '''\n```\n'''\n")]),
        ("```py\na```\nb", [("py", "a")]),
        ("```py\na\n``` b", [("py", "a\n")]),
        ("````py\na\n````", [("py", "a\n")]),
        ("```py\nprint('```')\n```", [("py", "print('```')\n")]),
        (
            "```py\nd = (\n    ```sh\n    a\n    ```\n)\n```",
            [("py", "d = (\n    ```sh\n    a\n    ```\n)\n")],
        ),
        ("A ```py block or ```a```\n```b```\n", []),
        ("```py\nunclosed", []),
        ("```py\n" * 3, []),
    ],
)
def test_code_blocks_are_found_by_their_opening_and_closing_lines(
    text: str, blocks: list[tuple[str, str]]
) -> None:
    assert code_blocks(text) == blocks


def test_xml_calls_have_a_name_and_json_arguments() -> None:
    name, arguments = "<tool_name>lookup</tool_name>", '<arguments>{"key": 3}</arguments>'
    text = f"First.<tool_call>\n{name}\n{arguments}\n</tool_call>"
    assert find_calls(text, {}, "xml") == [ToolCall("lookup", {"key": 3})]
    assert find_calls(f"<tool_call>{name}</tool_call>", {}, "xml") == [ToolCall("lookup")]
    (nameless,) = find_calls(f"<tool_call>{arguments}</tool_call>", {}, "xml")
    assert "no <tool_name>" in nameless.problem
    (wrong,) = find_calls(f"<tool_call>{name}<arguments>[3]</arguments></tool_call>", {}, "xml")
    assert "must be a JSON object, not list" in wrong.problem


@pytest.mark.parametrize("style", ["tag", "json", "native", "block", "xml"])
def test_written_calls_are_found_again(style: Any) -> None:
    tools = {"python": PythonLike(), "lookup": Lookup()}
    for call in (ToolCall("python", {"code": "print('é')"}), ToolCall("lookup", {"key": 3})):
        assert find_calls(write_call(call, style, tools[call.name]), tools, style) == [call]
    text = instruction(list(tools.values()), style)
    assert "python" in text and "lookup" in text


class PythonLike(Tool):
    name = "python"
    main_argument = "code"
    parameters: Mapping[str, Any] = {"type": "object", "properties": {"code": {"type": "string"}}}


class Lookup(Tool):
    name = "lookup"
    parameters: Mapping[str, Any] = {"type": "object", "properties": {"key": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("json", '<tool_call>{"name": "p", "arguments": %s}</tool_call>'),
        ("native", '{"name": "p", "arguments": %s}'),
        ("native", '{"tool_calls": [{"function": {"name": "p", "arguments": %s}}]}'),
        ("tag", "<weather>%s</weather>"),
        ("block", "```weather\n%s\n```"),
        ("xml", "<tool_call><tool_name>p</tool_name><arguments>%s</arguments></tool_call>"),
    ],
)
def test_arguments_have_no_lone_surrogates(style: Style, text: str) -> None:
    escaped = r'{"a": ["\ud83d\ude00 \ud83d"], "\udc00": {"b": "\ud83dx"}}'
    expected = {"a": ["\U0001f600 \ufffd"], "\ufffd": {"b": "\ufffdx"}}
    assert [arguments for _, arguments in calls(text % escaped, style)] == [expected]
    raw = '{"a": "\ud83d\ude00 \ud83d"}'
    assert [a for _, a in calls(text % raw, style)] == [{"a": "\U0001f600 \ufffd"}]
    if style != "tag":
        return
    assert calls("<python>'\ud83d'</python>") == [("python", {"code": "'\ufffd'"})]


def test_arguments_in_a_string_have_no_lone_surrogates() -> None:
    inner = json.dumps(json.dumps({"a": "\ud83d"}))
    call = f'{{"name": "p", "arguments": {inner}}}'
    assert calls(f"<tool_call>{call}</tool_call>", "json") == [("p", {"a": "\ufffd"})]
