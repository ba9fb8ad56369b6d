"""An MCP server with its own authorization server, which asks a person to log in.

The endpoints are those of the MCP package. The person always agrees, unless the server runs with
`--refuse`. Access tokens expire after `--seconds`.
"""

from __future__ import annotations

import argparse
import secrets
import time
from typing import Any

import uvicorn
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken


class Provider:
    """Clients, codes and tokens in memory."""

    def __init__(self, seconds: int, refuse: bool) -> None:
        self.seconds, self.refuse = seconds, refuse
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.access: dict[str, AccessToken] = {}
        self.refresh: dict[str, RefreshToken] = {}

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[str(client_info.client_id)] = client_info

    async def authorize(
        self, client: OAuthClientInformationFull, params: AuthorizationParams
    ) -> str:
        target = str(params.redirect_uri)
        if self.refuse:
            return construct_redirect_uri(target, error="access_denied", state=params.state)
        code = AuthorizationCode(
            code=secrets.token_hex(16),
            scopes=params.scopes or ["tools"],
            expires_at=time.time() + 60,
            client_id=str(client.client_id),
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        self.codes[code.code] = code
        return construct_redirect_uri(target, code=code.code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self.issue(str(client.client_id), authorization_code.scopes)

    async def load_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: str
    ) -> RefreshToken | None:
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        del self.refresh[refresh_token.token]
        return self.issue(str(client.client_id), scopes)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)

    async def revoke_token(self, token: Any) -> None:
        raise NotImplementedError

    def issue(self, client: str, scopes: list[str]) -> OAuthToken:
        access, refresh = secrets.token_hex(16), secrets.token_hex(16)
        expires = int(time.time()) + self.seconds
        self.access[access] = AccessToken(
            token=access, client_id=client, scopes=scopes, expires_at=expires
        )
        self.refresh[refresh] = RefreshToken(token=refresh, client_id=client, scopes=scopes)
        return OAuthToken(
            access_token=access,
            token_type="Bearer",
            expires_in=self.seconds,
            scope=" ".join(scopes),
            refresh_token=refresh,
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--refuse", action="store_true")
    arguments = parser.parse_args()
    base = f"http://127.0.0.1:{arguments.port}"
    urls: Any = {"issuer_url": base, "resource_server_url": f"{base}/mcp"}
    scopes = ["tools"]
    registration = ClientRegistrationOptions(
        enabled=True, valid_scopes=scopes, default_scopes=scopes
    )
    server = MCPServer(
        "guarded",
        auth=AuthSettings(
            **urls,
            required_scopes=scopes,
            client_registration_options=registration,
            validate_token_resource=False,
        ),
        auth_server_provider=Provider(arguments.seconds, arguments.refuse),
    )

    @server.tool()
    def secret() -> str:
        """Tell a secret to those who may know it."""
        return "the cake is in the cellar"

    uvicorn.run(server.streamable_http_app(), port=arguments.port, log_level="error")


if __name__ == "__main__":
    main()
