"""Tests of MCP tools, with real servers over stdio and HTTP that answer, fail, hang and die."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from project import SUPPORT
from tool_worlds import Quiz, Shop

from gem_core.adapter_kit.ports import free_port
from gem_core.errors import ConfigError
from gem_tools import Tool, ToolError
from gem_tools.mcp import McpTools
from gem_tools.mcp.server import _open, run
from gem_tools.wrapper import ToolWrapper

SERVER = str(SUPPORT / "mcp_shop_server.py")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine servers start and answer late."""
    for name in ("seconds", "start_deadline"):
        monkeypatch.setitem(McpTools.__init__.__kwdefaults__, name, 120.0)


@pytest.fixture
def database(tmp_path: Path) -> str:
    path = str(tmp_path / "shop.db")
    Shop(path).reset(seed=3)
    return path


@pytest.fixture
def shop(database: str) -> Iterator[McpTools]:
    shop = McpTools(command=sys.executable, args=[SERVER, database], share=False)
    yield shop
    shop.close()


def by_name(tools: McpTools) -> dict[str, Tool]:
    return {tool.name: tool for tool in tools.tools()}


def test_tools_are_discovered_and_called(shop: McpTools) -> None:
    tools = by_name(shop)
    assert set(tools) == {
        "schema",
        "query",
        "execute",
        "sleep",
        "crash",
        "process",
        "manual",
    }
    assert tools["query"].description == "The rows of a select statement."
    assert tools["query"].parameters["required"] == ["sql"]
    assert "CREATE TABLE orders" in str(tools["schema"].call({}))
    assert tools["query"].call({"sql": "select count(*) from orders"}).text == "[(5,)]"  # type: ignore[union-attr]


def test_call_errors_are_results(shop: McpTools) -> None:
    tools = by_name(shop)
    wrong: Any = tools["query"].call({"sql": "select 1 from nowhere"})
    assert (wrong.error, wrong.outage) == (True, False)
    assert "no such table" in wrong.text
    unknown: Any = tools["query"].call({"statement": "x"})
    assert (unknown.error, unknown.outage) == (True, False)


def test_long_results_are_cut_and_escaped(shop: McpTools) -> None:
    tools = by_name(shop)
    sql = "select char(27) || '[2J' || replace(hex(zeroblob(500000)), '00', 'ab')"
    result: Any = tools["query"].call({"sql": sql})
    assert not result.error
    assert len(result.text) < 70_000
    assert "characters left out" in result.text
    assert "\x1b" not in result.text


def test_result_shows_the_text_of_embedded_resources(shop: McpTools) -> None:
    result: Any = by_name(shop)["manual"].call({})
    assert result.text == "Orders are final.\n(resource)"


def test_errors_do_not_show_secrets() -> None:
    wrong = {"x": {"env": {"PGPASSWORD": "hunter2"}, "headers": {"X-Tenant": "hunter2"}}}
    with pytest.raises(ConfigError, match="needs either a command or a url") as raised:
        McpTools(servers=wrong)
    assert "hunter2" not in str(raised.value)
    program = "import sys; sys.stderr.write('password=hunter2'); sys.exit(1)"
    with pytest.raises(ToolError, match="cannot be reached") as failed:
        McpTools(command=sys.executable, args=["-c", program], share=False).tools()
    assert "hunter2" not in str(failed.value)


def test_call_deadline_leaves_the_server_running(database: str) -> None:
    shop = McpTools(command=sys.executable, args=[SERVER, database], seconds=3, share=False)
    tools = by_name(shop)
    late: Any = tools["sleep"].call({"seconds": 30})
    assert (late.error, late.outage) == (True, False)
    assert late.text == "sleep was given up: it took over 3 s."
    deadline = time.monotonic() + 60
    process: Any = late
    while process.error:
        assert time.monotonic() < deadline, "the server does not answer"
        process = tools["process"].call({})
    assert shop.servers[0].starts == 1
    os.kill(int(process.text), signal.SIGKILL)  # its end would wait for the sleep
    shop.close()


def test_busy_server_is_not_restarted(shop: McpTools) -> None:
    tools = by_name(shop)
    results: list[Any] = []
    busy = threading.Thread(target=lambda: results.append(tools["sleep"].call({"seconds": 4})))
    busy.start()
    time.sleep(0.2)
    meanwhile: Any = tools["query"].call({"sql": "select 1"})
    busy.join()
    assert (meanwhile.error, results[0].text, shop.servers[0].starts) == (False, "slept", 1)


def test_dead_server_is_restarted(shop: McpTools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gem_tools.mcp.server._SECONDS_TO_PING", 60.0)  # a timeout means alive
    tools = by_name(shop)
    first: Any = tools["process"].call({})
    os.kill(int(first.text), signal.SIGKILL)
    second: Any = tools["process"].call({})
    assert not second.error
    assert second.text != first.text
    crashed: Any = tools["crash"].call({})
    assert (crashed.error, crashed.outage) == (True, True)
    assert "went away during the call" in crashed.text
    third: Any = tools["process"].call({})
    assert third.text not in (first.text, second.text)
    assert shop.servers[0].starts == 3


def test_unreachable_server_raises_with_the_reason(database: str, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="'server' cannot be reached.*no licence"):
        McpTools(command=sys.executable, args=[SERVER, database, "--die"], share=False).tools()
    with pytest.raises(ToolError, match="cannot be reached"):
        McpTools(command=str(tmp_path / "nothing"), share=False).tools()
    with pytest.raises(ToolError, match="cannot be reached"):
        McpTools(url="http://127.0.0.1:9/mcp", share=False).tools()
    with pytest.raises(ToolError, match="not ready after 1 s"):
        McpTools(command="sleep", args=["30"], start_deadline=1, share=False).tools()


def test_server_that_cannot_restart_is_an_outage(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gem_tools.mcp.server._SECONDS_TO_PING", 60.0)
    program = tmp_path / "server.py"
    shutil.copy(SERVER, program)
    shop = McpTools(command=sys.executable, args=[str(program), database], share=False)
    tools = by_name(shop)
    pid: Any = tools["process"].call({})
    program.unlink()
    os.kill(int(pid.text), signal.SIGKILL)
    gone: Any = tools["process"].call({})
    assert (gone.error, gone.outage) == (True, True)
    assert "cannot be reached" in gone.text
    shutil.copy(SERVER, program)
    assert not tools["process"].call({}).error  # type: ignore[union-attr]
    shop.close()


def wait_until_open(server: subprocess.Popen[bytes], port: int) -> None:
    """Wait until a server accepts connections."""
    deadline = time.monotonic() + 120
    while True:
        assert server.poll() is None and time.monotonic() < deadline, "the server does not start"
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)


@pytest.fixture
def http(database: str) -> Iterator[tuple[str, Any]]:
    port = free_port()
    processes: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, SERVER, database, "--port", str(port)]
        processes.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        wait_until_open(processes[-1], port)
        return processes[-1]

    yield f"http://127.0.0.1:{port}/mcp", start
    for process in processes:
        process.kill()
        process.wait()


def test_http_connection_survives_a_server_restart(http: tuple[str, Any]) -> None:
    url, start = http
    process = start()
    shop = McpTools(url=url, share=False)
    tools = by_name(shop)
    assert tools["query"].call({"sql": "select 1"}).text == "[(1,)]"  # type: ignore[union-attr]
    process.kill()
    process.wait()
    gone: Any = tools["query"].call({"sql": "select 1"})
    assert (gone.error, gone.outage) == (True, True)
    start()
    assert tools["query"].call({"sql": "select 2"}).text == "[(2,)]"  # type: ignore[union-attr]
    shop.close()


def test_tools_of_several_servers_get_distinct_names(database: str, http: tuple[str, Any]) -> None:
    url, start = http
    start()
    both = McpTools(
        {"local": {"command": sys.executable, "args": [SERVER, database]}, "far": {"url": url}},
        only=["local_query", "far_query", "far_process", "local_process"],
        share=False,
    )
    tools = by_name(both)
    assert list(tools) == ["local_query", "local_process", "far_query", "far_process"]
    assert tools["local_process"].call({}) != tools["far_process"].call({})
    both.close()
    with pytest.raises(ConfigError, match="no tool typo"):
        McpTools(command=sys.executable, args=[SERVER, database], only=["typo"]).tools()


def test_concurrent_calls_share_one_connection(database: str) -> None:
    shop = McpTools(command=sys.executable, args=[SERVER, database])
    same = McpTools(command=sys.executable, args=[SERVER, database])
    assert shop.servers[0] is same.servers[0]
    query = by_name(shop)["query"]
    texts: list[str] = []

    def select(number: int) -> None:
        texts.append(query.call({"sql": f"select {number}"}).text)  # type: ignore[union-attr]

    threads = [threading.Thread(target=select, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(texts) == sorted(f"[({n},)]" for n in range(20))
    assert shop.servers[0].starts == 1


def test_unshared_server_restarts_at_each_reset(shop: McpTools) -> None:
    env = ToolWrapper(Quiz(), [shop])
    pids = []
    for episode in range(2):
        env.reset(seed=1)
        assert shop.servers[0].starts == episode + 1, "the reset starts the server"
        pids.append(env.step("<process></process>")[0])
    assert len(set(pids)) == 2
    twin = env.spawn()
    twin.reset(seed=1)
    assert twin.step("<process></process>")[0] not in pids
    twin.close()
    env.close()


def test_slow_start_does_not_count_as_a_call(tmp_path: Path, database: str) -> None:
    program = tmp_path / "slow.py"
    program.write_text(
        f"import time, sys, runpy; time.sleep(12); runpy.run_path({SERVER!r}, run_name='__main__')"
    )
    args = [str(program), database]
    shop = McpTools(command=sys.executable, args=args, seconds=10, share=False)
    env = ToolWrapper(Quiz(), [shop])
    env.reset(seed=1)
    assert shop.servers[0].starts == 1, "the reset starts the server"
    process: Any = by_name(shop)["process"]
    shop.close()
    assert not process.call({}).error, "a call that must connect waits for the start"
    assert shop.servers[0].starts == 2
    env.close()


def test_closed_and_failed_servers_are_dropped(shop: McpTools) -> None:
    before = set(_open.values())
    by_name(shop)
    assert set(_open.values()) - before == set(shop.servers)
    shop.close()
    assert not set(_open.values()) - before
    with pytest.raises(ToolError, match="cannot be reached"):
        McpTools(command=sys.executable, args=["-c", ""], share=False).tools()
    assert not set(_open.values()) - before


def test_concurrent_callers_share_one_attempt_to_connect() -> None:
    hung = McpTools(command="sleep", args=["30"], start_deadline=2, share=False)
    server = hung.servers[0]

    async def call_all() -> Any:
        return await asyncio.gather(*(server.call("query", {}, 1) for _ in range(8)))

    results = run(call_all())
    assert all(result.outage and "not ready after 2 s" in result.text for result in results)
    assert server.starts == 1, "each caller made its own attempt"
    hung.close()


def nested(levels: int) -> Any:
    return [nested(levels - 1)] if levels else 0


@pytest.mark.parametrize("value", ["\ud83d", {"\ud83d": 1}, nested(254), {1}])
def test_arguments_that_cannot_be_sent_are_an_error(shop: McpTools, value: Any) -> None:
    tools = by_name(shop)
    wrong: Any = tools["query"].call({"sql": value})
    assert (wrong.error, wrong.outage) == (True, False)
    assert wrong.text.startswith("query was not called: its arguments are")
    wrong.text.encode()
    assert tools["query"].call({"sql": "select 1"}).text == "[(1,)]"  # type: ignore[union-attr]
    assert shop.servers[0].starts == 1


def test_lone_surrogate_of_a_model_does_not_end_the_connection(shop: McpTools) -> None:
    env = ToolWrapper(Quiz(), [shop], style="json")
    env.reset(seed=1)
    call = json.dumps({"name": "query", "arguments": {"sql": "select '\ud83d'"}})
    observation, *_ = env.step(f"<tool_call>{call}</tool_call>")
    assert observation == "[('\ufffd',)]"
    assert shop.servers[0].starts == 1


def test_published_server_works() -> None:
    """Call mcp-server-time, from the authors of the protocol."""
    command = Path(sys.executable).with_name("mcp-server-time")
    assert command.exists(), "pip install mcp-server-time"
    clock = McpTools(command=str(command), args=["--local-timezone", "UTC"], share=False)
    convert = by_name(clock)["convert_time"]
    result: Any = convert.call(
        {"source_timezone": "Asia/Tokyo", "time": "12:00", "target_timezone": "UTC"}
    )
    assert not result.error
    assert "T03:00:00+00:00" in result.text
    wrong: Any = convert.call(
        {"source_timezone": "Moon/Crater", "time": "12:00", "target_timezone": "UTC"}
    )
    assert wrong.error
    assert "Moon/Crater" in wrong.text
    clock.close()


@contextlib.contextmanager
def http_server(script: str, *arguments: str) -> Iterator[str]:
    """Run a server of the tests; yield its address."""
    pytest.importorskip("mcp.server.mcpserver", reason="the test server needs mcp 2")
    port = free_port()
    server = subprocess.Popen([sys.executable, str(SUPPORT / script), str(port), *arguments])
    try:
        wait_until_open(server, port)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def test_client_credentials_open_a_guarded_server() -> None:
    with http_server("mcp_oauth_server.py") as base:
        url = f"{base}/mcp"
        stranger = McpTools(url=url, share=False)
        with pytest.raises(ToolError, match="cannot be reached"):
            stranger.tools()
        client = {"client_id": "trainer", "issuer": base}
        wrong = {**client, "client_secret": "guess"}
        with pytest.raises(ToolError, match="cannot be reached"):
            McpTools(url=url, oauth=wrong, share=False).tools()
        stranger.reconfigure(oauth={**client, "client_secret": "very-secret"})
        secret: Any = by_name(stranger)["secret"].call({})
        assert secret.text == "the cake is in the cellar"
        stranger.close()


def test_login_in_a_browser_opens_a_guarded_server_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The browser is any program that follows the redirects of the authorization server."""
    opened: list[str] = []

    def browse(url: str) -> bool:
        opened.append(url)
        with urllib.request.urlopen(url, timeout=20) as page:
            assert b"close this" in page.read()
        return True

    monkeypatch.setattr(webbrowser, "open", browse)
    tokens = tmp_path / "folder" / "tokens.json"

    def read_secret(base: str) -> str:
        tools = McpTools(url=f"{base}/mcp", oauth={"tokens": str(tokens)}, share=False)
        result: Any = by_name(tools)["secret"].call({})
        tools.close()
        return str(result.text)

    with http_server("mcp_login_server.py", "--seconds", "2") as base:
        assert read_secret(base) == "the cake is in the cellar"
        assert len(opened) == 1 and "code_challenge_method=S256" in opened[0]
        assert tokens.stat().st_mode & 0o777 == 0o600
        first = json.loads(tokens.read_text())["tokens"]["access_token"]
        time.sleep(2.5)  # the access token expires, and is refreshed without a person
        assert read_secret(base) == "the cake is in the cellar"
        assert len(opened) == 1
        assert json.loads(tokens.read_text())["tokens"]["access_token"] != first
    with http_server("mcp_login_server.py", "--refuse") as base:
        tokens.unlink()
        with pytest.raises(ToolError, match="the login was refused: access_denied"):
            read_secret(base)
    tokens.write_text("[")
    with pytest.raises(ToolError, match="is not a file of tokens"):
        read_secret("http://127.0.0.1:1")


def test_tools_are_reconfigured(shop: McpTools, tmp_path: Path) -> None:
    other = str(tmp_path / "other.db")
    sqlite3.connect(other).close()
    assert "orders" in by_name(shop)["schema"].call({}).text  # type: ignore[union-attr]
    shop.reconfigure(args=[SERVER, other], only=["schema"])
    assert set(by_name(shop)) == {"schema"}
    server = shop.servers[0]
    assert "orders" not in by_name(shop)["schema"].call({}).text  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="no argument port; it has: servers, command"):
        shop.reconfigure(port=3)
    with pytest.raises(ConfigError, match="either a command or a url"):
        shop.reconfigure(url="http://x")
    assert set(by_name(shop)) == {"schema"}, "a failed change leaves the settings as they were"
    assert (shop.servers[0], server.starts) == (server, 1), "a failed change restarts no server"
    shop.reconfigure(command="", args=[], url="http://127.0.0.1:9/mcp")
    with pytest.raises(ToolError, match="cannot be reached"):
        shop.tools()


def test_environment_uses_reconfigured_tools(shop: McpTools, tmp_path: Path) -> None:
    other = str(tmp_path / "other.db")
    sqlite3.connect(other).close()
    env = ToolWrapper(Quiz(), [shop])
    env.reset(seed=1)
    assert "orders" in env.step("<schema></schema>")[0]
    old = shop.servers[0]
    shop.reconfigure(args=[SERVER, other], only=["schema"])
    assert "orders" not in env.step("<schema></schema>")[0]
    _, info = env.reset(seed=1)
    assert [tool["function"]["name"] for tool in info["tools"]] == ["schema"]
    assert "orders" not in env.step("<schema></schema>")[0]
    assert old.starts == 1
    env.close()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "needs a server"),
        (
            {"url": "http://x", "oauth": {"client_id": "a"}},
            "must have client_id, client_secret and issuer",
        ),
        (
            {"url": "http://x", "oauth": "token"},
            "must have client_id, client_secret and issuer, or tokens",
        ),
        ({"servers": {"a": {}}}, "either a command or a url"),
        ({"servers": {"a": {"command": "x", "url": "y"}}}, "either a command or a url"),
        ({"servers": "nowhere.json"}, "not a JSON file"),
        ({"servers": {"a": "x"}}, "either a command or a url"),
        ({"servers": ["x"]}, "servers must be"),
        ({"command": "x", "url": "y"}, "either a command or a url"),
        ({"servers": {"server": {"url": "y"}}, "command": "x"}, "either servers or command"),
        ({"servers": {"a": {"url": "y"}}, "headers": {"A": "b"}}, "either servers or headers"),
        ({"args": ["x"]}, "needs a server"),
        ({"command": "x", "headers": {"A": "b"}}, "has a command and headers"),
        ({"command": "x", "oauth": {"tokens": "f"}}, "has a command and oauth"),
        ({"url": "x", "args": ["y"], "env": {"A": "b"}}, "has a url and args, env"),
        ({"servers": {"a": {"url": "x", "cwd": "y"}}}, "has a url and cwd; .* remove cwd"),
        ({"servers": {"a": {"command": "x", "arg": []}}}, "mean 'args' instead of 'arg'"),
        ({"servers": {"a": {"command": "x", "enviroment": {}}}}, "did you mean 'env'"),
        ({"servers": {"a": {"command": "x", "disabled": True}}}, "disabled.*remove the server"),
        ({"servers": {"a": {"command": "x", "timeout": 60}}}, "timeout.*set `seconds`"),
        ({"servers": {"a": {"url": "x", "type": "sse"}}}, "type must be .*'http'.*; got 'sse'"),
        ({"servers": {"a": {"command": "x", "transport": "http"}}}, "transport must be .*'stdio'"),
        ({"command": ["x", "y"]}, "command of .* must be a string, got list"),
        ({"command": "x", "args": "srv.py"}, "args of .* must be a list of strings, got str"),
        ({"command": "x", "args": ["y", 5]}, "args of .* item 1 is int"),
        ({"command": "x", "env": {"X": 1}}, "env of .* maps 'X' to int"),
        ({"url": "x", "headers": ["y"]}, "headers of .* must map strings to strings, got list"),
        ({"command": "x", "only": "add"}, "only must be a list of strings, got str"),
        ({"command": "x", "seconds": 0}, "seconds"),
        ({"command": "x", "seconds": "30"}, "seconds must be a positive number, got '30'"),
        ({"command": "x", "start_deadline": float("nan")}, "start_deadline"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        McpTools(**settings)


def test_servers_are_read_from_a_file(tmp_path: Path, database: str) -> None:
    file = tmp_path / "mcp.json"
    others = {"type": "stdio", "description": "a shop", "disabled": False, "autoApprove": []}
    config = {"command": sys.executable, "args": [SERVER, database], "env": None, **others}
    file.write_text(json.dumps({"mcpServers": {"shop": config}}))
    shop = McpTools(file, only=["schema"], share=False)
    assert [tool.name for tool in shop.tools()] == ["schema"]
    shop.close()
