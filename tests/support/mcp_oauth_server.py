"""An MCP server that needs a bearer token, and the OAuth server that issues it."""

from __future__ import annotations

import argparse
import base64
from typing import Any

import uvicorn
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

CLIENT, SECRET, TOKEN = "trainer", "very-secret", "token-of-the-trainer"


class Verifier:
    def __init__(self, resource: str) -> None:
        self.resource = resource

    async def verify_token(self, token: str) -> AccessToken | None:
        if token != TOKEN:
            return None
        return AccessToken(token=token, client_id=CLIENT, scopes=["tools"], resource=self.resource)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    port = parser.parse_args().port
    base = f"http://127.0.0.1:{port}"

    async def metadata(_: Request) -> JSONResponse:
        return JSONResponse(
            {
                "issuer": base,
                "authorization_endpoint": f"{base}/authorize",
                "token_endpoint": f"{base}/token",
                "grant_types_supported": ["client_credentials"],
                "response_types_supported": ["code"],
                "token_endpoint_auth_methods_supported": ["client_secret_basic"],
            }
        )

    async def token(request: Request) -> JSONResponse:
        form = await request.form()
        header = request.headers.get("authorization", "")
        given = base64.b64decode(header.removeprefix("Basic ")).decode() if header else ""
        if given != f"{CLIENT}:{SECRET}" or form.get("grant_type") != "client_credentials":
            return JSONResponse({"error": "invalid_client"}, status_code=401)
        return JSONResponse(
            {"access_token": TOKEN, "token_type": "Bearer", "expires_in": 600, "scope": "tools"}
        )

    settings: Any = {"issuer_url": base, "resource_server_url": f"{base}/mcp"}
    server = MCPServer(
        "guarded",
        auth=AuthSettings(**settings, required_scopes=["tools"], validate_token_resource=True),
        token_verifier=Verifier(f"{base}/mcp"),
    )

    @server.tool()
    def secret() -> str:
        """Tell a secret to those who may know it."""
        return "the cake is in the cellar"

    app = server.streamable_http_app()
    routes = [
        Route("/.well-known/oauth-authorization-server", metadata),
        Route("/token", token, methods=["POST"]),
        Mount("/", app),
    ]
    outer = Starlette(routes=routes, lifespan=lambda _: app.router.lifespan_context(app))
    uvicorn.run(outer, port=port, log_level="error")


if __name__ == "__main__":
    main()
