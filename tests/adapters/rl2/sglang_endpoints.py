"""Endpoints of SGLang's HTTP server that RL2 and its router call, without a model."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections import Counter

from aiohttp import web

__all__ = ["Endpoints", "argument_parser"]


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the arguments that RL2's mock of SGLang passes to a server."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True)
    return parser


class Endpoints(ABC):
    """A server; subclasses generate and load weights."""

    def __init__(self, model_path: str) -> None:
        self.info = {"model_path": model_path, "is_generation": True, "tp_size": 1, "dp_size": 1}
        self.calls: Counter[str] = Counter()

    def application(self) -> web.Application:
        """Return the web application."""
        application = web.Application(client_max_size=1 << 30)
        application.add_routes(
            [
                web.post("/generate", self.generate),
                web.post("/update_weights_from_tensor", self.update),
                web.get("/calls", self.count_calls),
                web.get("/last_request", self.show_last_request),
                web.get("/{name}", self.other),
                web.post("/{name}", self.other),
            ]
        )
        return application

    @abstractmethod
    async def generate(self, request: web.Request) -> web.Response:
        """Generate one completion."""

    @abstractmethod
    async def update(self, request: web.Request) -> web.Response:
        """Load weights."""

    async def other(self, request: web.Request) -> web.Response:
        """Answer any other call with facts about the server."""
        self.calls[request.match_info["name"]] += 1
        return web.json_response(self.info)

    async def count_calls(self, request: web.Request) -> web.Response:
        """Return how often each endpoint was called."""
        return web.json_response(self.calls)

    async def show_last_request(self, request: web.Request) -> web.Response:
        """Return the body of the last call of `/generate`, if the server keeps it."""
        return web.json_response({})
