"""OAuth of MCP servers: the client credentials grant, which needs no browser."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from gem_core.errors import ConfigError

__all__ = ["check_oauth", "oauth_of"]


class _Tokens:
    """The OAuth tokens of a connection, in memory."""

    def __init__(self) -> None:
        self.tokens: Any = None
        self.client: Any = None

    async def get_tokens(self) -> Any:
        return self.tokens

    async def set_tokens(self, tokens: Any) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> Any:
        return self.client

    async def set_client_info(self, client_info: Any) -> None:
        self.client = client_info


def oauth_of(config: Mapping[str, Any]) -> Any:
    """Return the authentication of a server with `oauth`, else None."""
    oauth = config.get("oauth")
    if not oauth:
        return None
    from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider

    # mcp 1 lets the MCP server name the authorization server, so the secret could go anywhere
    if "issuer" not in inspect.signature(ClientCredentialsOAuthProvider).parameters:
        raise ConfigError(
            "oauth needs mcp 2 or newer, which sends the secret to the issuer only; upgrade mcp, "
            "or send a token with `headers`"
        )
    return ClientCredentialsOAuthProvider(
        server_url=str(config["url"]),
        storage=_Tokens(),
        client_id=oauth["client_id"],
        client_secret=oauth["client_secret"],
        scope=oauth.get("scope"),
        issuer=oauth["issuer"],
    )


def check_oauth(name: str, config: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for an invalid `oauth` of a server."""
    oauth = config.get("oauth")
    if oauth is None:
        return
    needed = {"client_id", "client_secret", "issuer"}
    if not isinstance(oauth, Mapping) or not needed <= set(oauth) <= {*needed, "scope"}:
        keys = sorted(oauth) if isinstance(oauth, Mapping) else oauth
        raise ConfigError(
            f"oauth of the MCP server {name!r} must have client_id, client_secret and issuer, and "
            f"may have scope; got {keys}"
        )
    if not config.get("url"):
        raise ConfigError(f"oauth of the MCP server {name!r} needs a url, not a command")
