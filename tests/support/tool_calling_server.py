"""A chat server with function calling, as hosted APIs have it.

    python tool_calling_server.py

It prints its port, then a line of JSON per request. It answers `Compute A * B.` by calling the
function `python`, and then writes the function's result in a box. The model's name selects how it
answers:

- `calls`: with `tool_calls`, an id, and content null.
- `thinks`: as `calls`, with `reasoning_content`, which takes 1,000 tokens. A smaller `max_tokens`
  cuts the answer while it thinks.
- `strict`: as `thinks`, and it rejects a request that does not send `reasoning_content` back.
- `parts`: without functions, with thinking and text as content parts.
- `refuses`, `filtered`, `empty`: with a refusal, nothing but `content_filter`, or nothing at all.
- `talks`: with text in a field that no client knows.
- `silent`: only after 60 seconds.

It rejects what OpenAI's API rejects: a `tool` message without a call, and a call without a result.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

THOUGHT = "A product. I let Python compute it."
THINKING_TOKENS = 1000
_TASK = re.compile(r"Compute (\d+) \* (\d+)\.")
_print = threading.Lock()


def write_line(line: str) -> None:
    with _print:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


class Rejected(Exception):
    """A request that the server answers with the status 400."""


def check_messages(messages: list[dict[str, Any]], *, reasoning: bool) -> None:
    open_calls: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message.get("tool_call_id") not in open_calls:
                raise Rejected("a message with role 'tool' must follow a message with 'tool_calls'")
            open_calls.remove(message["tool_call_id"])
            continue
        if open_calls:
            raise Rejected(f"no tool message for the tool_call_ids {open_calls}")
        open_calls = [call["id"] for call in message.get("tool_calls") or ()]
        for call in message.get("tool_calls") or ():
            json.loads(call["function"]["arguments"])
        if reasoning and open_calls and message.get("reasoning_content") != THOUGHT:
            raise Rejected("reasoning_content must be passed back with tool calls")


def answered(body: dict[str, Any]) -> tuple[dict[str, Any], str, int]:
    """Return the message, the finish reason and the number of tokens."""
    model, messages = body["model"], body["messages"]
    check_messages(messages, reasoning=model == "strict")
    message: dict[str, Any] = {"role": "assistant", "content": None}
    fixed = {
        "refuses": ({**message, "refusal": "I cannot help with that."}, "stop", 7),
        "filtered": (message, "content_filter", 0),
        "empty": ({**message, "content": ""}, "stop", 1),
        "talks": ({**message, "content": "\\boxed{1}", "audio": {"transcript": "One!"}}, "stop", 9),
    }
    if model in fixed:
        return fixed[model]
    factors = next(m for t in messages if (m := _TASK.search(t.get("content") or "")))
    if model == "parts":
        product = int(factors[1]) * int(factors[2])
        thinking = {"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}]}
        text = {"type": "text", "text": f"\\boxed{{{product}}}"}
        return {**message, "content": [thinking, text]}, "stop", 20
    if model in ("thinks", "strict"):
        message["reasoning_content"] = THOUGHT
        if body["max_tokens"] < THINKING_TOKENS:
            return message, "length", body["max_tokens"]
    last = messages[-1]
    if last["role"] == "tool":
        return {**message, "content": f"\\boxed{{{last['content'].strip()}}}"}, "stop", 12
    if not any(tool["function"]["name"] == "python" for tool in body.get("tools") or ()):
        return {**message, "content": "I have no calculator."}, "stop", 5
    code = {"code": f"print({factors[1]} * {factors[2]})"}
    call = {
        "id": f"functions.python:{len(messages)}",
        "type": "function",
        "function": {"name": "python", "arguments": json.dumps(code)},
    }
    return {**message, "tool_calls": [call]}, "tool_calls", 30


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        write_line(json.dumps(body))
        if body["model"] == "silent":
            time.sleep(60)
        try:
            message, reason, tokens = answered(body)
        except Rejected as error:
            return self.answer(400, {"error": {"message": str(error)}})
        choice = {"index": 0, "message": message, "finish_reason": reason}
        usage = {"prompt_tokens": 1, "completion_tokens": tokens}
        return self.answer(200, {"object": "chat.completion", "choices": [choice], "usage": usage})

    def answer(self, status: int, value: dict[str, Any]) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Do nothing: `do_POST` logs requests as JSON."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    write_line(str(server.server_address[1]))
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        sys.exit(0)
