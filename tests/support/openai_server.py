"""A mock of OpenAI-compatible servers, with their dialects and failures.

    python openai_server.py [--trouble drop,busy,broken] [--key KEY]

It prints its port, then a line of JSON per request. The model's name selects the dialect: `vllm`
returns token ids, `older` only `token_id:` strings, `plain` neither. It "samples" the bytes of
`\\boxed{n}`, with n from the prompt, and ends its turn with the id 257. With `--trouble`, each
request fails in these ways, one per attempt, before it succeeds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

END = 257


def write_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def sampled(prompt: Any, body: dict[str, Any]) -> tuple[list[int], list[float], str]:
    digest = hashlib.sha256(json.dumps([prompt, body.get("seed")]).encode()).digest()
    ids = [*f"\\boxed{{{1 + digest[0] % 10}}}".encode(), END]
    cap = body["max_tokens"]
    logprobs = [-(1 + b % 7) / 8 for b in digest[: len(ids)]]
    return ids[:cap], logprobs[:cap], "stop" if len(ids) <= cap else "length"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    trouble: tuple[str, ...] = ()
    key = ""
    attempts: ClassVar[dict[str, int]] = {}
    lock = threading.Lock()

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        body = json.loads(text)
        with self.lock:
            attempt = self.attempts[text] = self.attempts.get(text, 0) + 1
            write_line(json.dumps({"path": self.path, "body": body}))
        kind = self.trouble[attempt - 1] if attempt <= len(self.trouble) else ""
        if kind == "drop":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if kind == "halved":
            self.close_connection = True
            self.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"choi')
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if kind == "busy":
            self.answer(429, {"error": {"message": "slow down"}}, {"Retry-After": "0.05"})
        elif kind == "broken":
            self.answer(500, None)
        elif self.key and self.headers.get("Authorization") != f"Bearer {self.key}":
            self.answer(
                401, {"error": {"message": f"wrong key: {self.headers.get('Authorization')}"}}
            )
        elif body["model"] == "unknown":
            self.answer(
                404,
                {"object": "error", "message": "The model `unknown` does not exist.", "code": 404},
            )
        elif body["model"] == "garbage":
            self.answer(200, None)
        elif self.path == "/v1/completions":
            self.answer(200, self.completion(body))
        elif self.path == "/v1/chat/completions":
            ids, _, reason = sampled(body["messages"], body)
            content = bytes(i for i in ids if i < 256).decode()
            message = {
                "role": "assistant",
                "content": content if body["model"] != "silent" else None,
            }
            self.answer(
                200, {"choices": [{"index": 0, "message": message, "finish_reason": reason}]}
            )
        else:
            self.answer(404, {"detail": "Not Found"})

    def completion(self, body: dict[str, Any]) -> dict[str, Any]:
        ids, logprobs, reason = sampled(body["prompt"], body)
        text = bytes(i for i in ids if i < 256).decode()
        choice: dict[str, Any] = {
            "index": 0,
            "text": text,
            "finish_reason": reason,
            "logprobs": None,
        }
        if (
            body["model"] in ("vllm", "older", "truncating", "aborting")
            and body.get("logprobs") is not None
        ):
            tokens = [
                f"token_id:{i}" if body.get("return_tokens_as_token_ids") else chr(i) for i in ids
            ]
            choice["logprobs"] = {
                "tokens": tokens,
                "token_logprobs": logprobs,
                "top_logprobs": None,
                "text_offset": [],
            }
        if body["model"] in ("vllm", "truncating", "aborting") and body.get("return_token_ids"):
            choice["token_ids"] = ids
            choice["prompt_token_ids"] = (
                body["prompt"][1:] if body["model"] == "truncating" else body["prompt"]
            )
        if body["model"] == "aborting":
            choice["finish_reason"] = "abort"
        return {"object": "text_completion", "choices": [choice]}

    def answer(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        content = b"Internal Server Error" if value is None else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Do nothing: `do_POST` logs requests as JSON."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--trouble", default="")
    parser.add_argument("--key", default="")
    args = parser.parse_args()
    Handler.trouble = tuple(t for t in args.trouble.split(",") if t)
    Handler.key = args.key
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    write_line(str(server.server_address[1]))
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        sys.exit(0)
