"""MCP tools: the tools of Model Context Protocol servers, discovered, called with a deadline, and found again when a server dies.

All connections live on one event loop on a thread of gem's own, so that they outlast the loops that engines come and go
with. A server that died is started or reached anew before the next call; a call that was under way is not repeated, since
nobody knows how far it got. What goes wrong comes back as the result of the call.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from gem_core.errors import ConfigError, MissingDependencyError
from gem_tools.tool import Tool, ToolError, ToolResult, Toolset

__all__ = ["McpTool", "McpTools"]

T = TypeVar("T")

_SECONDS_TO_CLOSE = 10.0
_SECONDS_TO_PING = 2.0


class McpTools(Toolset):
    """The tools of one or several servers. A tool keeps its name, with `server_` in front where two servers have the same."""

    def __init__(
        self,
        servers: Mapping[str, Mapping[str, Any]] | str | os.PathLike[str] | None = None,
        *,
        command: str = "",
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        url: str = "",
        headers: Mapping[str, str] | None = None,
        seconds: float = 30.0,
        start_deadline: float = 30.0,
        only: Sequence[str] = (),
        share: bool = True,
    ) -> None:
        """`servers`: {name: {command, args, env, cwd} or {url, headers}}, or a JSON file with that under `mcpServers`; a single
        server may be given by `command` or `url` instead. `seconds`: for one call. `only`: the tools to show. `share`:
        one connection for all environments; without it each environment has its own, started anew at every reset."""
        if not (seconds > 0 and start_deadline > 0):
            raise ConfigError(
                f"seconds and start_deadline must be above 0; given: {seconds!r}, {start_deadline!r}"
            )
        self._arguments: dict[str, Any] = {
            "servers": servers, "command": command, "args": args, "env": env, "url": url, "headers": headers,
            "seconds": seconds, "start_deadline": start_deadline, "only": only, "share": share,
        }  # fmt: skip
        given = _read(servers)
        if command or url:
            more = (
                {"command": command, "args": list(args), "env": dict(env or {})}
                if command
                else {"url": url, "headers": dict(headers or {})}
            )
            given = {**given, "server": more}
        if not given:
            raise ConfigError(
                "the tool 'mcp' needs a server: mcp(command='...', args=[...]), mcp(url='http://...') or mcp(servers={...})"
            )
        for name, about in given.items():
            if not isinstance(about, Mapping) or bool(about.get("command")) == bool(
                about.get("url")
            ):
                raise ConfigError(
                    f"the MCP server {name!r} is given as {about!r}; it needs either a command or a url"
                )
        _library()
        self.seconds, self.share, self.only = seconds, share, tuple(only)
        self.servers = [
            _server(name, about, start_deadline, share) for name, about in given.items()
        ]

    def begin(self) -> None:
        """At a reset: servers of this environment's own start anew."""
        if not self.share:
            self.close()

    def tools(self) -> list[Tool]:
        """Asks all servers, at the same time, for what they offer. Blocks."""

        async def all_of_them() -> list[list[Any]]:
            return await asyncio.gather(*(server.listed() for server in self.servers))

        offered = _loop().run(all_of_them())
        often = Counter(tool.name for tools in offered for tool in tools)
        found: list[Tool] = []
        for server, tools in zip(self.servers, offered, strict=True):
            for tool in tools:
                name = tool.name if often[tool.name] == 1 else f"{server.name}_{tool.name}"
                if not self.only or name in self.only:
                    found.append(McpTool(server, tool, name, self.seconds))
        unknown = set(self.only) - {tool.name for tool in found}
        if unknown:
            raise ConfigError(
                f"the MCP servers have no tool {', '.join(sorted(unknown))}; they have: {', '.join(sorted(often))}"
            )
        return found

    def close(self) -> None:
        """Ends the connections that nobody shares."""
        if not self.share:
            for server in self.servers:
                _loop().run(server.close())

    def twin(self) -> McpTools:
        """For another environment: the same where it is shared."""
        return self if self.share else McpTools(**self._arguments)

    @classmethod
    def status(cls) -> str:
        return (
            "ready"
            if find_spec("mcp")
            else "not installed; in a checkout of gem: pip install '.[mcp]'"
        )


class McpTool(Tool):
    """One tool of one server."""

    deterministic = False

    def __init__(self, server: _Server, offered: Any, name: str, seconds: float) -> None:
        self.server, self.seconds, self.name, self.offered_as = (
            server,
            seconds,
            name,
            str(offered.name),
        )
        self.description = str(offered.description or "")
        self.parameters = dict(
            _either(offered, "input_schema", "inputSchema") or {"type": "object", "properties": {}}
        )

    def call(self, arguments: Mapping[str, Any], state: Any = None) -> ToolResult:
        """Calls the server and waits, for so many seconds."""
        return _loop().run(self.server.call(self.offered_as, dict(arguments), self.seconds))


class _Server:
    """A connection that comes back. All methods but `__init__` run on the loop's thread."""

    def __init__(self, name: str, about: Mapping[str, Any], start_deadline: float) -> None:
        self.name, self.about, self.start_deadline = name, dict(about), start_deadline
        self.starts = 0
        """How often a connection was made."""
        self._session: Any = None
        self._life: asyncio.Task[None] | None = None
        self._end: asyncio.Event | None = None
        self._tools: list[Any] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connecting: asyncio.Lock

    async def listed(self) -> list[Any]:
        """What the server offers."""
        try:
            await self._connected()
        except Exception as error:
            raise ToolError(
                f"the MCP server {self.name!r} cannot be reached: {_said(error)}"
            ) from error
        return self._tools

    async def call(self, tool: str, arguments: dict[str, Any], seconds: float) -> ToolResult:
        """One call; everything that can go wrong is a result."""
        sent = False

        async def ask() -> Any:
            nonlocal sent
            session = await self._connected()
            sent = True
            return await session.call_tool(tool, arguments)

        try:
            answer = await asyncio.wait_for(ask(), seconds)
        except (TimeoutError, asyncio.TimeoutError):
            info = {"server": self.name, "problem": "deadline"}
            return ToolResult(
                f"{tool} was given up: it took over {seconds:g} s.",
                error=True,
                outage=not sent,
                info=info,
            )
        except Exception as error:  # noqa: BLE001 - the SDK raises many kinds, and each of them is an answer to the call
            info = {"server": self.name, "problem": _said(error)}
            if not sent:
                return ToolResult(
                    f"The server of {tool} cannot be reached: {_said(error)}",
                    error=True,
                    outage=True,
                    info=info,
                )
            if await self._answers():
                return ToolResult(f"{tool} failed: {_said(error)}", error=True, info=info)
            text = f"The server of {tool} went away during the call, which may or may not have taken effect."
            return ToolResult(text, error=True, outage=True, info=info)
        failed = bool(_either(answer, "is_error", "isError"))
        return ToolResult(_text(answer), error=failed, info={"server": self.name})

    async def close(self) -> None:
        """Ends the connection, and a process that was started for it."""
        life, end = self._life, self._end
        self._session = self._life = self._end = None
        if life is not None and end is not None:
            end.set()
            await asyncio.wait({life}, timeout=_SECONDS_TO_CLOSE)
            if not life.done():
                life.cancel()

    async def _connected(self) -> Any:
        """A session that is not known to be gone."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # a fork's: the connection is its parent's
            self._loop, self._connecting = loop, asyncio.Lock()
            self._session = self._life = self._end = None
        if not await self._answers():
            async with self._connecting:
                if not await self._answers():
                    await self.close()
                    await self._connect()
        return self._session

    async def _answers(self) -> bool:
        """Asked before each call, so that no call is sent to a server that is gone. One that is silent may be busy with
        somebody else's call, which starting it anew would take down."""
        if self._session is None or self._life is None or self._life.done():
            return False
        try:
            await asyncio.wait_for(self._session.send_ping(), _SECONDS_TO_PING)
        except (TimeoutError, asyncio.TimeoutError):
            return True
        except Exception:  # noqa: BLE001 - whatever it is, it is no answer
            return False
        return True

    async def _connect(self) -> None:
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        end = self._end = asyncio.Event()
        self._life = asyncio.ensure_future(self._live(ready, end))
        self.starts += 1
        try:
            await asyncio.wait_for(asyncio.shield(ready), self.start_deadline)
        except (TimeoutError, asyncio.TimeoutError):
            self._life.cancel()
            ready.cancel()
            raise ToolError(f"it was not ready after {self.start_deadline:g} s") from None

    async def _live(self, ready: asyncio.Future[None], end: asyncio.Event) -> None:
        """The whole life of a connection, in one task, as the SDK's contexts demand."""
        from mcp import ClientSession

        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints:
            try:
                async with (
                    _transport(self.about, complaints) as (read, write),
                    ClientSession(read, write) as session,
                ):
                    await session.initialize()
                    self._tools = await _all_tools(session)
                    self._session = session
                    ready.set_result(None)
                    await end.wait()
            except Exception as error:  # noqa: BLE001 - whoever waits for the connection is told
                if not ready.done():
                    complaints.seek(0)
                    said = complaints.read()[-500:].strip()
                    ready.set_exception(ToolError(f"{_said(error)}{': ' + said if said else ''}"))


@contextlib.asynccontextmanager
async def _transport(about: Mapping[str, Any], complaints: Any) -> AsyncIterator[tuple[Any, Any]]:
    if about.get("command"):
        from mcp import StdioServerParameters, stdio_client

        known = {key: about[key] for key in ("command", "args", "env", "cwd") if about.get(key)}
        async with stdio_client(StdioServerParameters(**known), errlog=complaints) as streams:
            yield streams[0], streams[1]
        return
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    async with create_mcp_http_client(headers=dict(about.get("headers") or {})) as client:
        async with streamable_http_client(str(about["url"]), http_client=client) as streams:
            yield streams[0], streams[1]


async def _all_tools(session: Any) -> list[Any]:
    """Every page of the list."""
    from mcp.types import PaginatedRequestParams

    page = await session.list_tools()
    tools = list(page.tools)
    while cursor := _either(page, "next_cursor", "nextCursor"):
        page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        tools += page.tools
    return tools


class _Thread:
    """An event loop on a thread of its own, for programs with and without one."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="gem-mcp", daemon=True).start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine there and waits for it here."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()


_threads: dict[int, _Thread] = {}
_servers: dict[str, _Server] = {}
_own: list[_Server] = []
_lock = threading.Lock()


def _loop() -> _Thread:
    with _lock:
        if os.getpid() not in _threads:  # a fork has none of its parent's threads
            _threads.clear()
            _servers.clear()
            _own.clear()
            _threads[os.getpid()] = _Thread()
        return _threads[os.getpid()]


def _server(name: str, about: Mapping[str, Any], start_deadline: float, share: bool) -> _Server:
    _loop()
    server = _Server(name, about, start_deadline)
    with _lock:
        if share:
            return _servers.setdefault(
                json.dumps([name, about], sort_keys=True, default=str), server
            )
        _own.append(server)
        return server


@atexit.register
def _close_all() -> None:
    thread = _threads.get(os.getpid())
    if thread is not None:
        for server in [*_servers.values(), *_own]:
            with contextlib.suppress(Exception):
                thread.run(server.close())


def _read(
    servers: Mapping[str, Mapping[str, Any]] | str | os.PathLike[str] | None,
) -> dict[str, Mapping[str, Any]]:
    if servers is None:
        return {}
    if not isinstance(servers, (str, os.PathLike)):
        return dict(servers)
    try:
        found = json.loads(Path(servers).read_text(encoding="utf-8"))
        return dict(found["mcpServers"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{servers} is no JSON file with servers under 'mcpServers': {type(error).__name__}: {error}"
        ) from None


def _either(thing: Any, new: str, old: str) -> Any:
    """mcp 2 writes names with underscores, mcp 1 in camel case."""
    return getattr(thing, new) if hasattr(thing, new) else getattr(thing, old, None)


def _text(answer: Any) -> str:
    """What a result says, with a note for what is not text."""
    parts = [
        str(block.text) if getattr(block, "text", None) is not None else f"({block.type})"
        for block in answer.content
    ]
    structured = _either(answer, "structured_content", "structuredContent")
    if not parts and structured is not None:
        parts.append(json.dumps(structured, ensure_ascii=False))
    return "\n".join(parts) or "(no content)"


def _said(error: BaseException) -> str:
    """The innermost reason: the SDK wraps what broke a connection into groups of one."""
    while isinstance(getattr(error, "exceptions", None), tuple) and error.exceptions:  # type: ignore[attr-defined]
        error = error.exceptions[0]  # type: ignore[attr-defined]
    return str(error) or type(error).__name__


def _library() -> None:
    if find_spec("mcp") is None:
        raise MissingDependencyError("the MCP tools", "mcp", "No module named 'mcp'")
