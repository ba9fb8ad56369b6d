"""MCP tools: the tools of Model Context Protocol servers, with deadlines and reconnection.

All connections live on one event loop on gem's own thread, so they outlast the engines' loops. A
dead server is restarted or reconnected before the next call. An interrupted call is not repeated,
because it may have taken effect. Errors are returned as the result of the call.
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
from gem_core.records.redact import Redactor
from gem_core.records.serialize import without_secrets
from gem_tools.mcp_oauth import check_oauth, oauth_of
from gem_tools.tool import Tool, ToolError, ToolResult, Toolset, printable

__all__ = ["McpTool", "McpTools"]

T = TypeVar("T")

_SECONDS_TO_CLOSE = 10.0
_SECONDS_TO_PING = 2.0
_SHOWN = 64_000
"""The number of characters of a result to show, half of them from the end."""


class McpTools(Toolset):
    """The tools of one or more servers; a name that two servers use gets the prefix `server_`."""

    def __init__(
        self,
        servers: Mapping[str, Mapping[str, Any]] | str | os.PathLike[str] | None = None,
        *,
        command: str = "",
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        url: str = "",
        headers: Mapping[str, str] | None = None,
        oauth: Mapping[str, str] | None = None,
        seconds: float = 30.0,
        start_deadline: float = 30.0,
        only: Sequence[str] = (),
        share: bool = True,
    ) -> None:
        """Configure the servers; the first `tools` call connects.

        `servers` is {name: {command, args, env, cwd} or {url, headers, oauth}}, or a JSON file with
        that mapping under `mcpServers`. A single server can be set by `command` or `url` instead.
        `oauth` is {client_id, client_secret, issuer} and optionally {scope}: the client credentials
        grant, which needs no browser. `issuer` is the only server that gets the secret.
        `seconds` is the time limit of a call. `only` lists the tools to show. With `share`, all
        environments share a connection; otherwise each has its own, restarted at every reset.
        """
        if not (seconds > 0 and start_deadline > 0):
            raise ConfigError(
                f"seconds and start_deadline must be positive; got {seconds!r}, {start_deadline!r}"
            )
        self._arguments: dict[str, Any] = {
            "servers": servers,
            "command": command,
            "args": args,
            "env": env,
            "url": url,
            "headers": headers,
            "oauth": oauth,
            "seconds": seconds,
            "start_deadline": start_deadline,
            "only": only,
            "share": share,
        }
        configs = _read(servers)
        if command:
            configs["server"] = {"command": command, "args": list(args), "env": dict(env or {})}
        elif url:
            given = {"oauth": oauth} if oauth is not None else {}
            configs["server"] = {"url": url, "headers": dict(headers or {}), **given}
        if not configs:
            raise ConfigError(
                "the tool 'mcp' needs a server: mcp(command='...', args=[...]), "
                "mcp(url='http://...') or mcp(servers={...})"
            )
        for name, config in configs.items():
            is_mapping = isinstance(config, Mapping)
            if not is_mapping or bool(config.get("command")) == bool(config.get("url")):
                raise ConfigError(
                    f"the MCP server {name!r} needs either a command or a url; "
                    f"got {without_secrets(config)!r}"
                )
            check_oauth(name, config)
        _library()
        self.seconds, self.share, self.only = seconds, share, tuple(only)
        self.servers = [
            _server(name, config, start_deadline, share) for name, config in configs.items()
        ]

    def begin(self) -> None:
        """Disconnect from servers that are not shared, so each episode restarts them."""
        if not self.share:
            self.close()

    def tools(self) -> list[Tool]:
        """List the tools of all servers, concurrently. Blocks."""

        async def list_all() -> list[list[Any]]:
            return await asyncio.gather(*(server.list_tools() for server in self.servers))

        offered = _loop().run(list_all())
        counts = Counter(tool.name for tools in offered for tool in tools)
        selected: list[Tool] = []
        for server, tools in zip(self.servers, offered, strict=True):
            for tool in tools:
                name = tool.name if counts[tool.name] == 1 else f"{server.name}_{tool.name}"
                if not self.only or name in self.only:
                    selected.append(McpTool(server, tool, name, self.seconds))
        unknown = set(self.only) - {tool.name for tool in selected}
        if unknown:
            raise ConfigError(
                f"the MCP servers have no tool {', '.join(sorted(unknown))}; "
                f"they have: {', '.join(sorted(counts))}"
            )
        return selected

    def close(self) -> None:
        """Close the connections that are not shared."""
        if not self.share:
            for server in self.servers:
                _loop().run(server.close())

    def twin(self) -> McpTools:
        """Return these tools if they are shared, else new ones with the same arguments."""
        return self if self.share else McpTools(**self._arguments)

    def reconfigure(self, **changes: Any) -> None:
        """Replace some arguments, such as `url` or `headers`; the next `tools` call connects."""
        known = ", ".join(self._arguments)
        unknown = [name for name in changes if name not in self._arguments]
        if unknown:
            raise ConfigError(f"McpTools has no argument {', '.join(unknown)}; it has: {known}")
        self.close()
        McpTools.__init__(self, **{**self._arguments, **changes})

    @classmethod
    def status(cls) -> str:
        if find_spec("mcp"):
            return "ready"
        return "not installed; in a checkout of gem: pip install '.[mcp]'"


class McpTool(Tool):
    """A tool of an MCP server."""

    deterministic = False

    def __init__(self, server: _Server, offered: Any, name: str, seconds: float) -> None:
        self.server, self.seconds, self.name = server, seconds, name
        self.offered_as = str(offered.name)
        self.description = str(offered.description or "")
        self.parameters = dict(
            _either(offered, "input_schema", "inputSchema") or {"type": "object", "properties": {}}
        )

    def call(self, arguments: Mapping[str, Any], state: Any = None) -> ToolResult:
        """Call the server and wait for at most `seconds`."""
        return _loop().run(self.server.call(self.offered_as, dict(arguments), self.seconds))


class _Server:
    """A connection that reconnects. All methods but `__init__` run on the loop's thread."""

    def __init__(self, name: str, config: Mapping[str, Any], start_deadline: float) -> None:
        self.name, self.config, self.start_deadline = name, dict(config), start_deadline
        self.starts = 0
        """The number of connections so far."""
        self._session: Any = None
        self._task: asyncio.Task[None] | None = None
        self._end: asyncio.Event | None = None
        self._tools: list[Any] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connecting: asyncio.Lock

    async def list_tools(self) -> list[Any]:
        """Return the tools of the server."""
        try:
            await self._connected()
        except Exception as error:
            raise ToolError(
                f"the MCP server {self.name!r} cannot be reached: {_reason(error)}"
            ) from error
        return self._tools

    async def call(self, tool: str, arguments: dict[str, Any], seconds: float) -> ToolResult:
        """Call a tool; return any error as a result."""
        sent = False

        async def send() -> Any:
            nonlocal sent
            session = await self._connected()
            sent = True
            return await session.call_tool(tool, arguments)

        try:
            answer = await asyncio.wait_for(send(), seconds)
        except (TimeoutError, asyncio.TimeoutError):
            text = f"{tool} was given up: it took over {seconds:g} s."
            info = {"server": self.name, "problem": "deadline"}
            return ToolResult(text, error=True, outage=not sent, info=info)
        except Exception as error:  # noqa: BLE001 - the SDK raises many kinds of errors
            reason = _reason(error)
            info = {"server": self.name, "problem": reason}
            if not sent:
                text = f"The server of {tool} cannot be reached: {reason}"
                return ToolResult(text, error=True, outage=True, info=info)
            if await self._is_alive():
                return ToolResult(f"{tool} failed: {reason}", error=True, info=info)
            text = (
                f"The server of {tool} went away during the call, "
                "which may or may not have taken effect."
            )
            return ToolResult(text, error=True, outage=True, info=info)
        failed = bool(_either(answer, "is_error", "isError"))
        return ToolResult(_text(answer), error=failed, info={"server": self.name})

    async def close(self) -> None:
        """Close the connection and end the process that was started for it."""
        task, end = self._task, self._end
        self._session = self._task = self._end = None
        if task is not None and end is not None:
            end.set()
            await asyncio.wait({task}, timeout=_SECONDS_TO_CLOSE)
            if not task.done():
                task.cancel()

    async def _connected(self) -> Any:
        """Return a session that is alive, as far as known."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # after a fork, the connection belongs to the parent
            self._loop, self._connecting = loop, asyncio.Lock()
            self._session = self._task = self._end = None
        if not await self._is_alive():
            async with self._connecting:
                if not await self._is_alive():
                    await self.close()
                    await self._connect()
        return self._session

    async def _is_alive(self) -> bool:
        """Ping the server before each call, so no call goes to a dead one.

        A silent server counts as alive: it may be busy with another call, which a restart would
        interrupt.
        """
        if self._session is None or self._task is None or self._task.done():
            return False
        try:
            await asyncio.wait_for(self._session.send_ping(), _SECONDS_TO_PING)
        except (TimeoutError, asyncio.TimeoutError):
            return True
        except Exception:  # noqa: BLE001 - any error means that the connection is dead
            return False
        return True

    async def _connect(self) -> None:
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        end = self._end = asyncio.Event()
        self._task = asyncio.ensure_future(self._run(ready, end))
        self.starts += 1
        try:
            await asyncio.wait_for(asyncio.shield(ready), self.start_deadline)
        except (TimeoutError, asyncio.TimeoutError):
            self._task.cancel()
            ready.cancel()
            raise ToolError(f"it was not ready after {self.start_deadline:g} s") from None

    async def _run(self, ready: asyncio.Future[None], end: asyncio.Event) -> None:
        """Open the connection and close it at `end`; the SDK requires one task for both."""
        from mcp import ClientSession

        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stderr:
            try:
                async with (
                    _transport(self.config, stderr) as (read, write),
                    ClientSession(read, write) as session,
                ):
                    await session.initialize()
                    self._tools = await _all_tools(session)
                    self._session = session
                    ready.set_result(None)
                    await end.wait()
            except Exception as error:  # noqa: BLE001 - `ready` raises it in `_connect`
                if not ready.done():
                    stderr.seek(0)
                    output = stderr.read()[-500:].strip()
                    reason = f"{_reason(error)}: {output}" if output else _reason(error)
                    ready.set_exception(ToolError(_safe(reason)))


@contextlib.asynccontextmanager
async def _transport(config: Mapping[str, Any], stderr: Any) -> AsyncIterator[tuple[Any, Any]]:
    if config.get("command"):
        from mcp import StdioServerParameters, stdio_client

        keys = ("command", "args", "env", "cwd")
        parameters = StdioServerParameters(**{key: config[key] for key in keys if config.get(key)})
        async with stdio_client(parameters, errlog=stderr) as streams:
            yield streams[0], streams[1]
        return
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    headers, auth = dict(config.get("headers") or {}), oauth_of(config)
    async with create_mcp_http_client(headers=headers, auth=auth) as client:
        async with streamable_http_client(str(config["url"]), http_client=client) as streams:
            yield streams[0], streams[1]


async def _all_tools(session: Any) -> list[Any]:
    """Fetch every page of the tool list."""
    from mcp.types import PaginatedRequestParams

    page = await session.list_tools()
    tools = list(page.tools)
    while cursor := _either(page, "next_cursor", "nextCursor"):
        page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        tools += page.tools
    return tools


class _Thread:
    """An event loop on its own thread, usable with and without a running loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="gem-mcp", daemon=True).start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop's thread and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()


_threads: dict[int, _Thread] = {}
_shared: dict[str, _Server] = {}
_unshared: list[_Server] = []
_lock = threading.Lock()


def _loop() -> _Thread:
    with _lock:
        if os.getpid() not in _threads:  # threads do not survive a fork
            _threads.clear()
            _shared.clear()
            _unshared.clear()
            _threads[os.getpid()] = _Thread()
        return _threads[os.getpid()]


def _server(name: str, config: Mapping[str, Any], start_deadline: float, share: bool) -> _Server:
    _loop()
    server = _Server(name, config, start_deadline)
    with _lock:
        if share:
            key = json.dumps([name, config], sort_keys=True, default=str)
            return _shared.setdefault(key, server)
        _unshared.append(server)
        return server


@atexit.register
def _close_all() -> None:
    thread = _threads.get(os.getpid())
    servers = [*_shared.values(), *_unshared]
    if thread is not None and servers:

        async def close() -> None:  # all at once: a server may take seconds to end
            closing = (server.close() for server in servers)
            await asyncio.gather(*closing, return_exceptions=True)

        with contextlib.suppress(Exception):
            thread.run(close())


def _read(
    servers: Mapping[str, Mapping[str, Any]] | str | os.PathLike[str] | None,
) -> dict[str, Mapping[str, Any]]:
    if servers is None:
        return {}
    if not isinstance(servers, (str, os.PathLike)):
        return dict(servers)
    try:
        return dict(json.loads(Path(servers).read_text(encoding="utf-8"))["mcpServers"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{servers} is not a JSON file with servers under 'mcpServers': "
            f"{type(error).__name__}: {error}"
        ) from None


def _either(value: Any, new: str, old: str) -> Any:
    """Return an attribute by its name in mcp 2 (snake case) or mcp 1 (camel case)."""
    return getattr(value, new) if hasattr(value, new) else getattr(value, old, None)


def _text(answer: Any) -> str:
    """Return the text of a result, with a note for each block that is not text."""
    parts = [
        str(block.text) if getattr(block, "text", None) is not None else f"({block.type})"
        for block in answer.content
    ]
    structured = _either(answer, "structured_content", "structuredContent")
    if not parts and structured is not None:
        parts.append(json.dumps(structured, ensure_ascii=False))
    text = "\n".join(parts) or "(no content)"
    if len(text) > _SHOWN:
        note = f"(... {len(text) - _SHOWN} characters left out ...)"
        text = f"{text[: _SHOWN // 2]}\n{note}\n{text[-_SHOWN // 2 :]}"
    return printable(text)


def _reason(error: BaseException) -> str:
    """Return the innermost error message; the SDK wraps connection errors in exception groups."""
    while isinstance(getattr(error, "exceptions", None), tuple) and error.exceptions:  # type: ignore[attr-defined]
        error = error.exceptions[0]  # type: ignore[attr-defined]
    return _safe(str(error) or type(error).__name__)


def _safe(text: str) -> str:
    """Return a text from a program without secrets and control characters."""
    return printable(Redactor().program_text(text))


def _library() -> None:
    if find_spec("mcp") is None:
        raise MissingDependencyError("the MCP tools", "mcp", "No module named 'mcp'")
