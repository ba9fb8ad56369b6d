"""HTTP: serves the Tinker API on a port of this machine."""

from __future__ import annotations

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gem_tinker.local_server.service import ApiError, Service

__all__ = ["LocalServer"]

_API = "/api/v1/"
_IMMEDIATE = {"healthz", "telemetry", "session_heartbeat", "cancel_future"}
"""Requests that need no work."""
_CONFIG = {"client/config", "client/dynamic_config"}
"""The client has a default for every flag."""


class LocalServer:
    """A running server; use it as a context manager. Its `url` is the client's `base_url`."""

    def __init__(
        self,
        model: str,
        folder: str | os.PathLike[str],
        *,
        port: int = 0,
        api_key: str | None = None,
        inspected: bool = False,
    ) -> None:
        """`folder`: where checkpoints are. `port`: 0 takes a free one. `api_key`: the only one that
        is accepted; None accepts all. `inspected`: see `Service`.
        """
        self.service = Service(model, folder, inspected=inspected)
        self._http = ThreadingHTTPServer(("127.0.0.1", port), _handler(self.service, api_key))
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._http.shutdown()
        self._http.server_close()
        self.service.close()

    def __enter__(self) -> LocalServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _handler(service: Service, api_key: str | None) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

        def _answer(self, body: bytes) -> None:
            try:
                status, result = 200, self._result(self.path.removeprefix(_API), body)
            except ApiError as error:
                status, result = error.status, {"detail": str(error)}
            is_json = isinstance(result, dict)
            content = json.dumps(result).encode() if isinstance(result, dict) else result
            self.send_response(status)
            kind = "application/json" if is_json else "application/x-protobuf"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _result(self, name: str, body: bytes) -> dict[str, Any] | bytes:
            if api_key is not None and self.headers.get("X-API-Key") != api_key:
                raise ApiError(401, "the API key is wrong")
            if name in _CONFIG or name in _IMMEDIATE or name.endswith("/finish"):
                return {"status": "accepted"}
            if name == "forward_backward":
                return service.forward_backward(body)
            method = getattr(service, name, None) if name.isidentifier() else None
            if method is None or name.startswith("_"):
                raise ApiError(404, f"this server has no {self.path}")
            result: dict[str, Any] | bytes = method(json.loads(body or b"{}"))
            return result

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    return Handler
