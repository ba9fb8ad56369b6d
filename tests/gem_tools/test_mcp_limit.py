"""Tests of the size limit for the messages of MCP servers, over stdio and HTTP."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from project import SUPPORT

from gem_tools import ToolError
from gem_tools.mcp import McpTools
from gem_tools.mcp.relay import response_id

SERVER = str(SUPPORT / "mcp_large_server.py")
ERROR = "the result is larger than 4,000,000 bytes, the limit for a result; request less"
HUGE = {"size": 40_000_000}


@pytest.fixture
def stdio() -> Iterator[McpTools]:
    tools = McpTools(command=sys.executable, args=[SERVER], start_deadline=120, share=False)
    yield tools
    tools.close()


@pytest.fixture
def http() -> Iterator[McpTools]:
    command = [sys.executable, SERVER, "http"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        url = f"http://127.0.0.1:{port}/mcp"
        tools = McpTools(url=url, start_deadline=120, share=False)
        yield tools
        tools.close()
        server.kill()


def call(tools: McpTools, name: str, arguments: dict[str, Any]) -> Any:
    return next(tool for tool in tools.tools() if tool.name == name).call(arguments)


@pytest.mark.parametrize("name", ["head", "tail"])
def test_huge_result_over_stdio_is_an_error(stdio: McpTools, name: str) -> None:
    result = call(stdio, name, HUGE)
    assert (result.text, result.error, result.outage) == (f"{name} failed: {ERROR}", True, False)
    assert call(stdio, "small", {}).text == "ok"
    assert stdio.servers[0].starts == 1


@pytest.mark.parametrize(
    ("name", "problem"),
    [("json", ERROR), ("sse", ERROR), ("gzip", "the server sent its response as gzip")],
)
def test_huge_result_over_http_is_an_error(http: McpTools, name: str, problem: str) -> None:
    result = call(http, name, HUGE)
    assert (result.text, result.error, result.outage) == (f"{name} failed: {problem}", True, False)
    assert call(http, "small", {}).text == "ok"
    assert http.servers[0].starts == 1


@pytest.mark.parametrize("name", ["head", "tail"])
def test_result_below_the_limit_is_shortened_over_stdio(stdio: McpTools, name: str) -> None:
    check_shortened(call(stdio, name, {"size": 3_000_000}))


@pytest.mark.parametrize("name", ["json", "sse"])
def test_result_below_the_limit_is_shortened_over_http(http: McpTools, name: str) -> None:
    check_shortened(call(http, name, {"size": 3_000_000}))


def check_shortened(result: Any) -> None:
    assert not result.error
    assert 64_000 < len(result.text) < 64_100
    assert "(... 2936000 characters left out ...)" in result.text


def test_huge_results_do_not_delay_other_calls(stdio: McpTools) -> None:
    """Without a limit, 40 MB keep the thread of all connections busy for half a minute."""
    other = McpTools(command=sys.executable, args=[SERVER], start_deadline=120, share=False)
    small = next(tool for tool in other.tools() if tool.name == "small")
    results: list[Any] = []
    busy = threading.Thread(target=lambda: results.append(call(stdio, "head", HUGE)))
    busy.start()
    slowest = 0.0
    while busy.is_alive():
        begin = time.monotonic()
        assert small.call({}).text == "ok"  # type: ignore[union-attr]
        slowest = max(slowest, time.monotonic() - begin)
    other.close()
    assert ERROR in results[0].text
    assert slowest < 15


def test_command_that_does_not_exist_is_named() -> None:
    with pytest.raises(ToolError, match="cannot be reached.*No such file.*'no-such-command'"):
        McpTools(command="no-such-command", share=False).tools()


@pytest.mark.parametrize(
    ("head", "tail", "id"),
    [
        (b'{"jsonrpc":"2.0","id":5,"result":{"id":1', b'"id":2}]}}\n', b"5"),
        (b'{"id": "a-1", "jsonrpc": "2.0", "result"', b"]}}\n", b'"a-1"'),
        (b'{"result":{"id":1', b'"id":2}],"jsonrpc":"2.0","id":5}\r\n', b"5"),
        (b'{"jsonrpc":"2.0","result":{"id":1', b'}]}, "id": 5 }\n', b"5"),
        (b'{"jsonrpc":"2.0","method":"log","params":{"id":1', b'"id":2}]}}\n', None),
    ],
)
def test_id_is_found_at_the_ends_of_a_response(head: bytes, tail: bytes, id: bytes | None) -> None:
    assert response_id(head, tail) == id
