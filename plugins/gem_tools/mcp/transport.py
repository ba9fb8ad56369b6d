"""Transports: the connection to an MCP server, with a limit for the size of a message.

The MCP package reads messages of any size on the event loop that all connections share; 20 MB take
it more than ten seconds. Here a message over the limit becomes an error response before that.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import re
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from gem_tools.mcp import relay
from gem_tools.mcp.oauth import oauth_of

__all__ = ["LARGEST_MESSAGE", "open_transport"]

LARGEST_MESSAGE = 4_000_000
"""The number of bytes of the largest message that a server may send."""

_END_OF_EVENT = re.compile(rb"\n\r?\n|\r\r")


@contextlib.asynccontextmanager
async def open_transport(config: Mapping[str, Any], stderr: Any) -> AsyncIterator[tuple[Any, Any]]:
    """Connect to a server; yield the streams of received and sent messages."""
    if config.get("command"):
        from mcp import StdioServerParameters, stdio_client

        command = [str(config["command"]), *(config.get("args") or ())]
        keys = ("env", "cwd")
        parameters = StdioServerParameters(
            command=sys.executable,
            args=["-I", "-S", str(Path(relay.__file__)), str(LARGEST_MESSAGE), *command],
            **{key: config[key] for key in keys if config.get(key)},
        )
        async with stdio_client(parameters, errlog=stderr) as streams:
            yield streams[0], streams[1]
        return
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    headers, auth = dict(config.get("headers") or {}), oauth_of(config)
    options: dict[str, Any] = {}
    if "max_sse_event_size" in inspect.signature(streamable_http_client).parameters:
        options["max_sse_event_size"] = None  # from mcp 2.3; ours has a clearer message
    async with create_mcp_http_client(headers=headers, auth=auth) as client:
        _limit_responses(client)
        url = str(config["url"])
        async with streamable_http_client(url, http_client=client, **options) as streams:
            yield streams[0], streams[1]


def _limit_responses(client: Any) -> None:
    """Limit the messages in the responses that an HTTP client of the MCP package receives."""
    client.headers["accept-encoding"] = "identity"  # a small compressed message may expand
    library = sys.modules[type(client).__module__.partition(".")[0]]  # httpx, or httpx2 from mcp 2

    class Limited(library.AsyncByteStream):  # type: ignore[misc,name-defined]
        """The body of a response, whose messages are limited."""

        def __init__(self, response: Any) -> None:
            self.stream, self.response = response.stream, response
            self.encoding = response.headers.pop("content-encoding", "identity")

        def __aiter__(self) -> AsyncIterator[bytes]:
            return _limited(self.stream, self.response, self.encoding)

        async def aclose(self) -> None:
            await self.stream.aclose()

    async def limit(response: Any) -> None:
        response.stream = Limited(response)

    client.event_hooks = {"response": [limit]}


async def _limited(stream: Any, response: Any, encoding: str) -> AsyncIterator[bytes]:
    """Yield a body, one or more whole messages at a time, until a message is too long."""
    kind = response.headers.get("content-type", "").lower()
    is_events = kind.startswith("text/event-stream")
    if encoding != "identity":
        yield _error(response.request, is_events, f"the server sent its response as {encoding}")
        return
    pending = bytearray()
    async for chunk in stream:
        unsearched = max(0, len(pending) - 2)
        pending += chunk
        ends = [end.end() for end in _END_OF_EVENT.finditer(pending, unsearched)]
        if is_events and ends:
            yield bytes(pending[: ends[-1]])
            del pending[: ends[-1]]
        if len(pending) > LARGEST_MESSAGE:
            yield _error(response.request, is_events, relay.over_limit(LARGEST_MESSAGE))
            return
    yield bytes(pending)


def _error(request: Any, is_events: bool, problem: str) -> bytes:
    """Return a body with an error, or an empty one if `request` awaits no response."""
    try:
        id = json.dumps(json.loads(request.content)["id"]).encode()
    except (ValueError, KeyError, TypeError):
        return b""
    message = relay.error_response(id, problem)
    return b"data: %s\n\n" % message if is_events else message
