"""Tests of the retrieval tool, with a mock HTTP server that fails in realistic ways."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gem_core.errors import ConfigError
from gem_tools import ToolResult
from gem_tools.retrieval import RetrievalTool


class Server:
    """A Search-R1 server that gives scripted answers first, then documents."""

    def __init__(self) -> None:
        self.script: list[Any] = []
        self.requests: list[dict[str, Any]] = []
        self.ended = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                size = int(self.headers["content-length"])
                server.requests.append(json.loads(self.rfile.read(size)))
                answer = server.script.pop(0) if server.script else None
                if answer == "slow":
                    server.ended.wait(60)
                if answer in ("drop", "slow"):
                    self.close_connection = True
                    return
                status, body = answer if isinstance(answer, tuple) else (200, server.documents())
                text = body if isinstance(body, str) else json.dumps(body)
                self.send_response(status)
                self.send_header("content-length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                """Write no log."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/retrieve"
        threading.Thread(
            target=self.http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()

    def documents(self) -> dict[str, Any]:
        query = self.requests[-1]["queries"][0]
        document = {"id": "7", "contents": f'"{query}"\nAll about {query}.'}
        other = {"document": {"text": "Other."}}
        return {"result": [[{"document": document, "score": 0.9}, other]]}


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.ended.set()
    server.http.shutdown()
    server.http.server_close()


def ask(server: Server, **settings: Any) -> ToolResult:
    tool = RetrievalTool(server.url, **{"backoff": 0.01, "timeout": 10.0, **settings})
    return tool.call({"query": "moss"})


def test_query_uses_search_r1s_protocol_and_returns_passages(server: Server) -> None:
    result = ask(server, k=2)
    assert server.requests == [{"queries": ["moss"], "topk": 2, "return_scores": True}]
    assert result.text == "[1] moss\nAll about moss.\n\n[2]\nOther."
    assert (result.error, result.outage) == (False, False)
    assert result.info == {"attempts": 1, "passages": ["7", "1"]}


@pytest.mark.parametrize("failure", [(503, "busy"), (429, "slow down"), (500, ""), "drop", "slow"])
def test_temporary_failure_is_retried(server: Server, failure: Any) -> None:
    server.script = [failure, failure]
    result = ask(server, timeout=2.0 if failure == "slow" else 10.0)
    assert (result.error, result.info["attempts"]) == (False, 3)


def test_lone_surrogate_in_a_query_is_replaced(server: Server) -> None:
    result = RetrievalTool(server.url).call({"query": "moss \ud83d"})
    assert not result.error
    assert server.requests[0]["queries"] == ["moss \ufffd"]


def test_permanent_failure_is_an_outage_after_the_retries(server: Server) -> None:
    server.script = [(503, "busy")] * 9
    result = ask(server, retries=2)
    assert (result.outage, result.error) == (True, True)
    assert result.info["attempts"] == len(server.requests) == 3
    assert "the server answered 503" in result.text


@pytest.mark.parametrize(
    "answer", [(400, "no such field"), (200, "no json"), (200, {"hits": []}), (200, {"result": []})]
)
def test_invalid_answer_is_not_retried(server: Server, answer: Any) -> None:
    server.script = [answer]
    result = ask(server)
    assert (result.outage, result.info["attempts"]) == (True, 1)


def test_unreachable_server_is_an_outage() -> None:
    result = RetrievalTool("http://127.0.0.1:9/x", retries=1, backoff=0.01).call({"query": "a"})
    assert (result.outage, result.info["attempts"]) == (True, 2)


def test_invalid_settings_are_rejected() -> None:
    for settings, problem in [
        ({"url": "example.org"}, "address"),
        ({"url": "http://x", "k": 0}, "k must"),
        ({"url": "http://x", "retries": -1}, "retries must be an integer >= 0, got -1"),
        ({"url": "http://x", "retries": "3"}, "retries must be an integer >= 0, got '3'"),
        ({"url": "http://x", "timeout": "10"}, "timeout must be a positive number, got '10'"),
        ({"url": "http://x", "backoff": -1}, "backoff must be 0 or more seconds; got -1"),
    ]:
        with pytest.raises(ConfigError, match=problem):
            RetrievalTool(**settings)  # type: ignore[arg-type]


def test_reference_protocol_is_msgpack() -> None:
    msgpack = pytest.importorskip("msgpack")
    requests: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            requests.append(msgpack.unpackb(body))
            document = {"contents": "Title\nThe text."}
            answer = msgpack.packb({"result": [[{"document": document, "score": 0.5}]]})
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            """Write no log."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}).start()
    try:
        url = f"http://127.0.0.1:{http.server_port}/retrieve"
        result = RetrievalTool(url, encoding="msgpack").call({"query": "what"})
    finally:
        http.shutdown()
        http.server_close()
    assert requests == [{"queries": ["what"], "topk": 3, "return_scores": True}]
    assert "Title" in result.text and "The text." in result.text and not result.error
    with pytest.raises(ConfigError, match="encoding must be 'json' or 'msgpack'"):
        RetrievalTool(url, encoding="yaml")  # type: ignore[arg-type]
