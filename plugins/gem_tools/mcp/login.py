"""Login: OAuth by a person in a browser, for an MCP server without client credentials.

This is the authorization code grant with PKCE. The tokens are kept in a file, so only the first run
needs the browser: later ones refresh them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
import webbrowser
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gem_core.errors import ConfigError

__all__ = ["login_of"]

_PAGE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nYou can close this."
)


class _TokenFile:
    """The tokens, the registered client and the authorization server, in a private file."""

    def __init__(self, path: str) -> None:
        self.path = Path(path).expanduser()
        self.context: Any = None
        self.data: dict[str, Any] = {}
        if self.path.exists():
            try:
                self.data = dict(json.loads(self.path.read_text(encoding="utf-8")))
            except (OSError, ValueError, TypeError) as error:
                raise ConfigError(
                    f"oauth: {self.path} is not a file of tokens ({error}); remove it to log in "
                    "again"
                ) from None

    async def get_tokens(self) -> Any:
        from mcp.shared.auth import OAuthToken

        return OAuthToken(**self.data["tokens"]) if "tokens" in self.data else None

    async def set_tokens(self, tokens: Any) -> None:
        seconds = tokens.expires_in
        self.data["tokens"] = tokens.model_dump(mode="json", exclude_none=True)
        self.data["expires_at"] = None if seconds is None else time.time() + seconds
        if self.context.oauth_metadata is not None:
            metadata = self.context.oauth_metadata.model_dump(mode="json", exclude_none=True)
            self.data["metadata"] = metadata
        self._write()

    async def get_client_info(self) -> Any:
        from mcp.shared.auth import OAuthClientInformationFull

        return OAuthClientInformationFull(**self.data["client"]) if "client" in self.data else None

    async def set_client_info(self, client_info: Any) -> None:
        self.data["client"] = client_info.model_dump(mode="json", exclude_none=True)
        self._write()

    def restore(self, context: Any) -> None:
        """Tell the MCP package when the tokens expire and which server refreshes them."""
        from mcp.shared.auth import OAuthMetadata

        self.context = context
        context.token_expiry_time = self.data.get("expires_at")
        if "metadata" in self.data:
            context.oauth_metadata = OAuthMetadata(**self.data["metadata"])

    def port(self) -> int:
        """Return the port of the registered redirect address, or a free one."""
        addresses = self.data.get("client", {}).get("redirect_uris")
        if addresses:
            return int(urlsplit(addresses[0]).port or 80)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return int(free.getsockname()[1])

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(self.data, file)
        new.replace(self.path)


class _Redirect:
    """Opens the login page and waits for the browser to return to a port of this machine."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.address = f"http://127.0.0.1:{port}/"
        self.result: asyncio.Future[dict[str, list[str]]]
        self.server: asyncio.Server

    async def open(self, url: str) -> None:
        self.result = asyncio.get_running_loop().create_future()
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        logging.getLogger(__name__).warning("to log in to the MCP server, open %s", url)
        await asyncio.to_thread(webbrowser.open, url)

    async def wait(self) -> Any:
        from mcp.shared.auth import AuthorizationCodeResult

        try:
            query = await self.result
        finally:
            self.server.close()
        values = {name: query[name][0] for name in ("code", "state", "iss") if name in query}
        if "code" not in values:
            raise PermissionError(f"the login was refused: {query.get('error', ['no code'])[0]}")
        return AuthorizationCodeResult(**values)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError, IndexError):
            path = (await reader.readline()).decode("ascii", "replace").split()[1]
            writer.write(_PAGE)
            await writer.drain()
            query = parse_qs(urlsplit(path).query)
            if ("code" in query or "error" in query) and not self.result.done():
                self.result.set_result(query)
        writer.close()


def login_of(config: Mapping[str, Any]) -> Any:
    """Return the authentication of a server whose `oauth` has `tokens`, the path of a file."""
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import OAuthClientMetadata

    storage = _TokenFile(str(config["oauth"]["tokens"]))
    redirect = _Redirect(storage.port())
    metadata: dict[str, Any] = {
        "redirect_uris": [redirect.address],
        "grant_types": ["authorization_code", "refresh_token"],
        "token_endpoint_auth_method": "none",
        "scope": config["oauth"].get("scope"),
        "client_name": "gem",
    }
    provider = OAuthClientProvider(
        str(config["url"]),
        OAuthClientMetadata(**metadata),
        storage,
        redirect_handler=redirect.open,
        callback_handler=redirect.wait,
    )
    storage.restore(provider.context)
    return provider
