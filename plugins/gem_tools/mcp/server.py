"""Server: the connection to an MCP server, with deadlines and reconnection.

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
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from gem_core.records.redact import Redactor
from gem_tools.mcp.transport import open_transport
from gem_tools.tool import ToolError, ToolResult, printable

__all__ = ["Server", "connection", "either", "run"]

T = TypeVar("T")

_SECONDS_TO_CLOSE = 10.0
_SECONDS_TO_PING = 2.0
_SHOWN = 64_000
"""The number of characters of a result to show, half of them from the end."""
_MAX_DEPTH = 100
"""The depth of nested arguments; the MCP package cannot send or parse more than about 200."""


class Server:
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
        self._connecting: asyncio.Future[None] | None = None
        """The current or last attempt to connect, for which all callers wait."""

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
        """Call a tool; return any error as a result.

        `seconds` limits the call itself; `start_deadline` limits a connection before it.
        """
        if problem := _unsendable(arguments):
            info = {"server": self.name, "problem": problem}
            return ToolResult(f"{tool} was not called: {problem}.", error=True, info=info)
        try:
            session = await self._connected()
        except Exception as error:  # noqa: BLE001 - the SDK raises many kinds of errors
            reason = _reason(error)
            info = {"server": self.name, "problem": reason}
            text = f"The server of {tool} cannot be reached: {reason}"
            return ToolResult(text, error=True, outage=True, info=info)
        try:
            answer = await asyncio.wait_for(session.call_tool(tool, arguments), seconds)
        except (TimeoutError, asyncio.TimeoutError):
            text = f"{tool} was given up: it took over {seconds:g} s."
            info = {"server": self.name, "problem": "deadline"}
            return ToolResult(text, error=True, info=info)
        except Exception as error:  # noqa: BLE001 - the SDK raises many kinds of errors
            reason = _reason(error)
            info = {"server": self.name, "problem": reason}
            if await self._is_alive():
                return ToolResult(f"{tool} failed: {reason}", error=True, info=info)
            text = (
                f"The server of {tool} went away during the call, "
                "which may or may not have taken effect."
            )
            return ToolResult(text, error=True, outage=True, info=info)
        failed = bool(either(answer, "is_error", "isError"))
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
            self._loop, self._connecting = loop, None
            self._session = self._task = self._end = None
        session = self._session
        if not await self._is_alive():
            # Another caller may have reconnected during the ping, or is about to.
            dead = self._session is None or self._session is session
            if self._connecting is None or (dead and self._connecting.done()):
                self._connecting = asyncio.ensure_future(self._reconnect())
            await asyncio.shield(self._connecting)
        return self._session

    async def _reconnect(self) -> None:
        await self.close()
        await self._connect()

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
        task = self._task = asyncio.ensure_future(self._run(ready, end))
        _open[task] = self
        task.add_done_callback(_open.pop)
        self.starts += 1
        try:
            await asyncio.wait_for(asyncio.shield(ready), self.start_deadline)
        except (TimeoutError, asyncio.TimeoutError):
            task.cancel()
            ready.cancel()
            raise ToolError(f"it was not ready after {self.start_deadline:g} s") from None

    async def _run(self, ready: asyncio.Future[None], end: asyncio.Event) -> None:
        """Open the connection and close it at `end`; the SDK requires one task for both."""
        from mcp import ClientSession

        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stderr:
            try:
                async with (
                    open_transport(self.config, stderr) as (read, write),
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


async def _all_tools(session: Any) -> list[Any]:
    """Fetch every page of the tool list."""
    from mcp.types import PaginatedRequestParams

    page = await session.list_tools()
    tools = list(page.tools)
    while cursor := either(page, "next_cursor", "nextCursor"):
        page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        tools += page.tools
    return tools


_loops: dict[int, asyncio.AbstractEventLoop] = {}
_shared: dict[str, Server] = {}
_open: dict[asyncio.Task[None], Server] = {}
"""The open connections, by their tasks, and the servers to close at exit."""
_lock = threading.Lock()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the thread of the connections and wait for its result."""
    return asyncio.run_coroutine_threadsafe(work, _loop()).result()


def _loop() -> asyncio.AbstractEventLoop:
    with _lock:
        if os.getpid() not in _loops:  # threads do not survive a fork
            _loops.clear()
            _shared.clear()
            _open.clear()
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="gem-mcp", daemon=True).start()
        return _loops[os.getpid()]


def connection(name: str, config: Mapping[str, Any], start_deadline: float, share: bool) -> Server:
    """Return the connection to a server that is not open yet, or the shared one to that server."""
    _loop()
    server = Server(name, config, start_deadline)
    if not share:
        return server
    with _lock:
        key = json.dumps([name, config], sort_keys=True, default=str)
        return _shared.setdefault(key, server)


@atexit.register
def _close_all() -> None:
    servers = set(_open.values())
    if os.getpid() in _loops and servers:

        async def close() -> None:  # all at once: a server may take seconds to end
            closing = (server.close() for server in servers)
            await asyncio.gather(*closing, return_exceptions=True)

        with contextlib.suppress(Exception):
            run(close())


def _unsendable(arguments: dict[str, Any]) -> str:
    """Return why arguments cannot be sent, or "".

    The SDK would close the connection, with the calls of other episodes, in the attempt.
    """
    if _is_deeper(arguments, _MAX_DEPTH):
        return f"its arguments are nested over {_MAX_DEPTH} levels deep"
    try:
        json.dumps(arguments, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:  # UnicodeEncodeError for a lone surrogate
        return f"its arguments are not valid JSON in UTF-8 ({error})"
    return ""


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, (dict, list, tuple)):
        return False
    items = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(item, levels - 1) for item in items)


def either(value: Any, new: str, old: str) -> Any:
    """Return an attribute by its name in mcp 2 (snake case) or mcp 1 (camel case)."""
    return getattr(value, new) if hasattr(value, new) else getattr(value, old, None)


def _text(answer: Any) -> str:
    """Return the text of a result, with a note for each block that is not text."""
    parts = []
    for block in answer.content:
        text = getattr(getattr(block, "resource", block), "text", None)
        parts.append(f"({block.type})" if text is None else str(text))
    structured = either(answer, "structured_content", "structuredContent")
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
