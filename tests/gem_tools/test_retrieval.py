"""Retrieval: a real HTTP server in Search-R1's form that fails in the ways servers do."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gem_core.errors import ConfigError
from gem_tools import ToolResult
from gem_tools.retrieval import RetrievalTool


class Server:
    """Answers from a list of scripted answers, then with documents."""

    def __init__(self) -> None:
        self.script: list[Any] = []
        self.asked: list[dict[str, Any]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                server.asked.append(
                    json.loads(self.rfile.read(int(self.headers["content-length"])))
                )
                answer = server.script.pop(0) if server.script else None
                if answer == "drop":
                    self.close_connection = True
                    return
                if answer == "slow":
                    time.sleep(1.5)
                status, body = answer if isinstance(answer, tuple) else (200, server.documents())
                text = body if isinstance(body, str) else json.dumps(body)
                self.send_response(status)
                self.send_header("content-length", str(len(text.encode())))
                self.end_headers()
                with contextlib.suppress(BrokenPipeError):  # whoever asked has lost patience
                    self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                """Says nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/retrieve"
        threading.Thread(
            target=self.http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()

    def documents(self) -> dict[str, Any]:
        query = self.asked[-1]["queries"][0]
        return {
            "result": [
                [
                    {
                        "document": {"id": "7", "contents": f'"{query}"\nAll about {query}.'},
                        "score": 0.9,
                    },
                    {"document": {"text": "Other."}},
                ]
            ]
        }


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


def ask(server: Server, **settings: Any) -> ToolResult:
    return RetrievalTool(server.url, **{"backoff": 0.01, "timeout": 0.5, **settings}).call(
        {"query": "moss"}
    )


def test_a_query_goes_out_in_search_r1s_form_and_comes_back_as_passages(server: Server) -> None:
    result = ask(server, k=2)
    assert server.asked == [{"queries": ["moss"], "topk": 2, "return_scores": True}]
    assert result.text == "[1] moss\nAll about moss.\n\n[2]\nOther."
    assert (result.error, result.outage, result.info) == (
        False,
        False,
        {"attempts": 1, "passages": ["7", "1"]},
    )


@pytest.mark.parametrize("trouble", [(503, "busy"), (429, "slow down"), (500, ""), "drop", "slow"])
def test_trouble_that_passes_is_survived(server: Server, trouble: Any) -> None:
    server.script = [trouble, trouble]
    result = ask(server)
    assert (result.error, result.info["attempts"]) == (False, 3)


def test_trouble_that_stays_is_an_outage_after_the_retries(server: Server) -> None:
    server.script = [(503, "busy")] * 9
    result = ask(server, retries=2)
    assert (result.outage, result.error, result.info["attempts"], len(server.asked)) == (
        True,
        True,
        3,
        3,
    )
    assert "the server answered 503" in result.text


@pytest.mark.parametrize(
    "answer", [(400, "no such field"), (200, "no json"), (200, {"hits": []}), (200, {"result": []})]
)
def test_a_wrong_answer_is_not_asked_for_again(server: Server, answer: Any) -> None:
    server.script = [answer]
    result = ask(server)
    assert (result.outage, result.info["attempts"]) == (True, 1)


def test_nobody_there(server: Server) -> None:
    result = RetrievalTool("http://127.0.0.1:9/x", retries=1, backoff=0.01).call({"query": "a"})
    assert (result.outage, result.info["attempts"]) == (True, 2)


def test_settings_are_checked() -> None:
    for settings, problem in [
        ({"url": "example.org"}, "address"),
        ({"url": "http://x", "k": 0}, "k must"),
        ({"url": "http://x", "retries": -1}, "retries"),
    ]:
        with pytest.raises(ConfigError, match=problem):
            RetrievalTool(**settings)  # type: ignore[arg-type]
