"""Arguments of a server."""

from __future__ import annotations

from typing import Any


class ServerArgs:
    """Server arguments. `rest`: those that only `vllm_server.py` reads."""

    def __init__(self, *, host: str, port: int, model_path: str, **rest: Any) -> None:
        self.host, self.port, self.model_path, self.rest = host, port, model_path, rest

    def url(self) -> str:
        return f"http://{self.host}:{self.port}"
