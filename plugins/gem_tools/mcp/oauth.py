"""OAuth of MCP servers: client credentials, which need no browser, or a login in a browser."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from gem_core.errors import ConfigError
from gem_tools.mcp.login import login_of

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
    if "tokens" in oauth:
        return login_of(config)
    return ClientCredentialsOAuthProvider(
        server_url=str(config["url"]),
        storage=_Tokens(),
        client_id=oauth["client_id"],
        client_secret=oauth["client_secret"],
        scope=oauth.get("scope"),
        issuer=oauth["issuer"],
    )


def check_oauth(server: str, config: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for an invalid `oauth`; the message calls the server `server`."""
    oauth = config.get("oauth")
    if oauth is None:
        return
    keys = set(oauth) - {"scope"} if isinstance(oauth, Mapping) else oauth
    if keys not in ({"client_id", "client_secret", "issuer"}, {"tokens"}):
        shown = sorted(oauth) if isinstance(oauth, Mapping) else type(oauth).__name__
        raise ConfigError(
            f"oauth of {server} must have client_id, client_secret and issuer, or tokens, a file "
            f"for the tokens of a login in a browser; it may have scope; got {shown}"
        )
