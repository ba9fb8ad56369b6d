"""Hosted models over HTTP: function calling, thinking, and answers that are not actions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from project import SOURCES, SUPPORT, clean_env
from tool_calling_server import THOUGHT

from gem_core import Env, FinishReason, Message, Turn, register, run_batch, tasks_for
from gem_core.__main__ import main
from gem_core.env.registry import environments
from gem_core.errors import PolicyError
from gem_core.records.file import read_episodes
from gem_eval.models.openai import OpenAIChatPolicy
from gem_eval.models.openai.answer import read_answer
from gem_eval.models.openai.function_calls import calls_as_text, chat_messages

SERVER = SUPPORT / "tool_calling_server.py"
PRODUCT = "test:Product-v0"
NATIVE = "python(style='native', max_uses=3, seconds=60)"


class Product(Env):
    """A product that a language model computes with a tool."""

    action_example = "12"

    def on_reset(self, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        self.factors = self.rng.randrange(100, 1000), self.rng.randrange(100, 1000)
        return "Compute {} * {}.".format(*self.factors), {}

    def on_step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        solved = action == str(self.factors[0] * self.factors[1])
        return "", float(solved), True, False, {"success": solved}


@pytest.fixture(autouse=True)
def product() -> Iterator[None]:
    register(PRODUCT, Product, wrappers=["boxed"])
    yield
    environments.remove(PRODUCT)


class Server:
    """A running server and the requests it received."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.url = f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        self.requests: list[dict[str, Any]] = []
        lines = process.stdout
        self.reader = threading.Thread(
            target=lambda: self.requests.extend(map(json.loads, lines)), daemon=True
        )
        self.reader.start()

    def request(self, messages: int = 1) -> dict[str, Any]:
        """Wait for the first request with this many messages or more, and return it."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for request in list(self.requests):
                if len(request["messages"]) >= messages:
                    return request
            time.sleep(0.01)
        raise AssertionError(f"the server printed no request with {messages} messages")


@pytest.fixture
def server() -> Iterator[Server]:
    process = subprocess.Popen([sys.executable, str(SERVER)], stdout=subprocess.PIPE, text=True)
    running = Server(process)
    yield running
    process.kill()
    process.wait()
    running.reader.join()
    assert process.stdout is not None
    process.stdout.close()


def evaluated(server: Server, out: Path, model: str, *more: str) -> dict[str, Any]:
    """Run `gem-rl eval` and return the model's row of the summary."""
    args = ["eval", PRODUCT, "--model", model, "--server", server.url, "--out", str(out)]
    args += ["--seeds", "3", "--no-bounds", "--quiet", *more]
    assert main(args) == 0
    (row,) = json.loads((out / "summary.json").read_text())["scores"]
    return dict(row)


def turns(out: Path) -> list[Turn]:
    return [turn for episode in read_episodes(out / "episodes.jsonl") for turn in episode.turns]


def test_server_with_tool_calls_solves_a_tool_task(server: Server, tmp_path: Path) -> None:
    row = evaluated(server, tmp_path, "calls", "--tools", NATIVE)
    assert (row["success"]["value"], row["tool_uses"], row["format_errors"]) == (1.0, 1.0, 0.0)
    assert row["tokens"] == 30 + 12
    first, second = server.request(), server.request(messages=3)
    (tool,) = first["tools"]
    assert tool["function"]["name"] == "python"
    system = first["messages"][0]["content"]
    assert "You may make 3 tool calls in all." in system
    assert "<tool_call>" not in system, "the prompt tells the model to write calls as text"
    assert turns(tmp_path)[0].messages[0].content == system, "the record has another prompt"
    call, result = second["messages"][-2:]
    assert call["tool_calls"][0]["id"] == result["tool_call_id"] == "functions.python:2"
    assert (call["content"], result["role"]) == (None, "tool")
    assert first["max_tokens"] == 4096


def test_server_without_function_calling_gets_the_instructions_as_text(
    server: Server, tmp_path: Path
) -> None:
    row = evaluated(server, tmp_path, "calls", "--tools", "python(style='json')")
    assert row["success"]["value"] == 0.0
    first = server.request()
    assert "tools" not in first
    assert "<tool_call>" in first["messages"][0]["content"]


def test_thinking_is_recorded_and_not_part_of_the_action(server: Server, tmp_path: Path) -> None:
    row = evaluated(server, tmp_path, "thinks", "--tools", NATIVE)
    assert (row["success"]["value"], row["cut"]) == (1.0, 0.0)
    assert {turn.reasoning for turn in turns(tmp_path)} == {THOUGHT}
    assert not any(THOUGHT in turn.action for turn in turns(tmp_path))
    assert not any("reasoning_content" in m for r in server.requests for m in r["messages"])


def test_thinking_is_sent_back_if_the_server_requires_it(server: Server, tmp_path: Path) -> None:
    args = ["--tools", NATIVE, "--return-reasoning"]
    assert evaluated(server, tmp_path / "a", "strict", *args)["success"]["value"] == 1.0
    with pytest.raises(AssertionError):
        evaluated(server, tmp_path / "b", "strict", "--tools", NATIVE)
    (failure,) = {str(e.failure) for e in read_episodes(tmp_path / "b" / "episodes.jsonl")}
    assert "answered 400: reasoning_content must be passed back" in failure
    assert "style='json'" in failure


def test_thinking_in_content_parts_is_recorded(server: Server, tmp_path: Path) -> None:
    row = evaluated(server, tmp_path, "parts")
    assert row["success"]["value"] == 1.0
    assert {turn.reasoning for turn in turns(tmp_path)} == {THOUGHT}


@pytest.mark.parametrize(
    ("model", "column", "finish"),
    [
        ("thinks", "cut", FinishReason.LENGTH),
        ("refuses", "refused", FinishReason.REFUSED),
        ("filtered", "refused", FinishReason.REFUSED),
        ("empty", "empty", FinishReason.EMPTY),
        ("calls", "format_errors", FinishReason.STOP),
    ],
)
def test_table_tells_answers_without_an_action_apart(
    server: Server, tmp_path: Path, model: str, column: str, finish: FinishReason
) -> None:
    """Without tools, the model `calls` writes a complete sentence without an action."""
    row = evaluated(server, tmp_path, model, "--max-tokens", "100")
    columns = ("cut", "refused", "empty", "format_errors")
    assert {name: row[name] for name in columns} == {c: float(c == column) for c in columns}
    assert {turn.finish for turn in turns(tmp_path)} == {finish}
    headers = (tmp_path / "table.txt").read_text().splitlines()[0].split()
    assert "CUT@100" in headers
    assert ("REFUSED" in headers, "EMPTY" in headers) == (column == "refused", column == "empty")


def test_text_of_a_refusal_is_in_the_record(server: Server, tmp_path: Path) -> None:
    evaluated(server, tmp_path, "refuses")
    assert {turn.action for turn in turns(tmp_path)} == {"I cannot help with that."}


def test_ignored_fields_are_reported_once(server: Server) -> None:
    policy = OpenAIChatPolicy(server.url, "talks")
    with pytest.warns(UserWarning, match=r"contain message.audio, which gem ignores") as warned:
        run_batch(tasks_for(PRODUCT, range(3)), policy)
    policy.close()
    assert len(warned) == 1


def test_eval_prints_ignored_fields(server: Server, tmp_path: Path) -> None:
    args = ["eval", "game:GuessTheNumber-v0-easy", "--model", "talks", "--server", server.url]
    done = subprocess.run(
        [sys.executable, "-m", "gem_core", *args, "--no-bounds", "--out", str(tmp_path)],
        env=clean_env(PYTHONPATH=os.pathsep.join(SOURCES)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("gem-rl: warning: the answers of") == 1


def test_silent_server_is_shown_as_waiting_and_given_up(server: Server, tmp_path: Path) -> None:
    args = ["eval", "game:GuessTheNumber-v0-easy", "--model", "silent", "--server", server.url]
    args += ["--seeds", "1", "--no-bounds", "--timeout", "3", "--out", str(tmp_path)]
    program = (
        "from gem_eval.cli import progress; progress._SILENT, progress._EVERY[False] = 1.0, 1.0; "
        f"from gem_core.__main__ import main; raise SystemExit(main({args!r}))"
    )
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=clean_env(PYTHONPATH=os.pathsep.join(SOURCES)),
        capture_output=True,
        text=True,
    )
    assert time.monotonic() - began < 30
    assert done.returncode == 1
    assert "waiting for the server: no answer for" in done.stderr
    assert "(limit 3 s)" in done.stderr
    assert "gave no answer within 3 s (2 attempts). Raise the timeout" in done.stderr


# The conversion of calls.

CALL = {"id": "a1", "type": "function", "function": {"name": "f", "arguments": '{"x": "</think>"}'}}


def test_calls_are_sent_back_as_the_server_wrote_them() -> None:
    calls = [{**CALL, "extra_content": {"signature": "xyz"}}, {**CALL, "id": "a2"}]
    action = calls_as_text("I look it up.", calls)
    assert "</think>" not in action, "tool parsers would skip it as thinking"
    conversation = [Message("user", "?"), Message("assistant", action), Message("tool", "1 and 2")]
    _, assistant, first, second = chat_messages(conversation, function_calling=True)
    assert assistant == {"role": "assistant", "content": "I look it up.", "tool_calls": calls}
    assert first == {"role": "tool", "tool_call_id": "a1", "content": "1 and 2"}
    assert (second["tool_call_id"], second["role"]) == ("a2", "tool")


@pytest.mark.parametrize("text", ["<tool_call>", "<tool_call>{", "<tool_call>[1]</tool_call>", "x"])
def test_text_without_a_complete_call_stays_text(text: str) -> None:
    messages = [Message("assistant", text), Message("user", "?")]
    assert chat_messages(messages, function_calling=True) == [m.as_dict() for m in messages]


def test_call_without_an_id_gets_one() -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    messages = [Message("user", "?"), Message("assistant", text), Message("user", "no")]
    _, assistant, result = chat_messages(messages, function_calling=True)
    assert assistant["tool_calls"][0]["id"] == result["tool_call_id"] == "call01000"


@pytest.mark.parametrize("content", [3, {"text": "x"}])
def test_content_of_another_type_raises(content: Any) -> None:
    with pytest.raises(PolicyError, match="expected text"):
        read_answer({"choices": [{"message": {"content": content}}]}, "http://x")


def test_fields_with_content_are_ignored_only_if_gem_does_not_read_them() -> None:
    message = {"role": "assistant", "content": "hi", "annotations": [], "audio": None}
    choices = [{"message": message, "finish_reason": "stop"}] * 2
    assert read_answer({"choices": choices}, "http://x").ignored == (
        "all but the first of 2 choices",
    )
