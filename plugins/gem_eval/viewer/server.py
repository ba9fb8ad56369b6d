"""Local viewer server that follows a record while it is being written.

It listens on the loopback address, answers GET, and rejects requests with another Host header,
which prevents DNS rebinding.
"""

from __future__ import annotations

import json
import threading
import urllib.parse
from http import HTTPStatus
from pathlib import Path
from typing import Any

from gem_http.listener import Handler, Listener

from gem_core.errors import ConfigError, GemError, RecordError
from gem_core.records.file import episodes_after
from gem_eval.viewer.page import document, policy
from gem_eval.viewer.payload import Credit, Shelf
from gem_eval.viewer.title import title_of

__all__ = ["ViewerServer"]

_MOST = 4_000_000
"""Approximate maximum characters per answer; the script requests the rest immediately."""
_MOST_CONNECTIONS = 64
"""A browser opens about six for each page."""


class ViewerServer:
    """Serve one record until it is closed."""

    def __init__(
        self,
        path: str | Path,
        *,
        port: int = 0,
        credit: Credit | None = None,
        tokenizer: Any = None,
    ) -> None:
        """Bind the port; 0 selects a free one. The file does not have to exist yet."""
        self._path, self._credit, self._tokenizer = Path(path), credit or Credit(), tokenizer
        self._lock = threading.Lock()
        self._reset()
        self._generation = 0
        handler = type("_Bound", (_Handler,), {"viewer": self})
        try:
            self._server = Listener("127.0.0.1", port, handler, _MOST_CONNECTIONS)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"cannot listen on port {port} ({error}); "
                "choose another --port, or omit it to use a free one"
            ) from error
        self._serving = False
        self.port: int = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/"

    def serve(self) -> None:
        """Serve until another thread calls `close`, or until Ctrl-C."""
        self._serving = True
        self._server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        """Stop `serve` and release the port."""
        if self._serving:  # `shutdown` blocks forever if `serve_forever` never ran
            self._server.shutdown()
        self._server.server_close()

    def page(self) -> str:
        """Return the page, without data."""
        return document(title_of(self._path), self._credit)

    def lines(self, generation: int, start: int) -> dict[str, Any]:
        """Return the lines from number `start`.

        A file that was replaced has a new generation, and is sent from its beginning.
        """
        with self._lock:
            self._read()
            if generation != self._generation:
                start = 0
            end, size = start, 0
            while end < len(self._lines) and size < _MOST:
                size += len(self._lines[end])
                end += 1
            return {
                "generation": self._generation,
                "next": end,
                "more": end < len(self._lines),
                "lines": self._lines[start:end],
            }

    def advantages(self, number: int) -> list[float] | None:
        """Return the advantages of one episode, over all episodes read so far."""
        with self._lock:
            return self._shelf.advantages(number) if 0 <= number < len(self._shelf) else None

    def _reset(self) -> None:
        self._shelf = Shelf(self._credit, self._tokenizer)
        self._lines: list[str] = []
        self._offset = 0
        self._file: tuple[int, int] | None = None

    def _read(self) -> None:
        try:
            stat = self._path.stat()
        except OSError:
            return  # the file does not exist yet
        file = (stat.st_dev, stat.st_ino)
        if self._file is not None and (self._file != file or stat.st_size < self._offset):
            self._restart()
        self._file = file
        try:
            self._read_rest()
        except RecordError:
            if not self._offset:
                raise
            # The file may have been overwritten and grown since: the offset is no line end then.
            self._restart()
            self._file = file
            self._read_rest()

    def _restart(self) -> None:
        self._reset()
        self._generation += 1

    def _read_rest(self) -> None:
        for episode, end in episodes_after(self._path, self._offset):
            self._lines += self._shelf.add(episode)
            self._offset = end


class _Handler(Handler):
    viewer: ViewerServer
    idle_seconds = 60.0

    def do_GET(self) -> None:  # noqa: N802 - http.server's name
        port = self.viewer.port
        if self.headers.get("Host") not in (f"127.0.0.1:{port}", f"localhost:{port}"):
            return self._answer(
                HTTPStatus.FORBIDDEN,
                "text/plain",
                "This viewer only answers requests to 127.0.0.1 and localhost.",
            )
        url = urllib.parse.urlsplit(self.path)
        try:
            query = {
                name: int(values[0]) for name, values in urllib.parse.parse_qs(url.query).items()
            }
            if url.path == "/":
                return self._answer(HTTPStatus.OK, "text/html", self.viewer.page())
            if url.path == "/lines":
                lines = self.viewer.lines(query.get("generation", 0), max(0, query.get("from", 0)))
                return self._answer(HTTPStatus.OK, "application/json", json.dumps(lines))
            if url.path == "/advantages":
                advantages = self.viewer.advantages(query.get("episode", -1))
                return self._answer(HTTPStatus.OK, "application/json", json.dumps(advantages))
        except ValueError as error:
            if not isinstance(error, GemError):
                return self._answer(
                    HTTPStatus.BAD_REQUEST, "text/plain", "Query values must be integers."
                )
            return self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", str(error))
        return self._answer(HTTPStatus.NOT_FOUND, "text/plain", "Page not found.")

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        headers = {
            "Content-Security-Policy": policy(live=True) + "; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }
        self.reply(status, f"{kind}; charset=utf-8", text.encode("utf-8", "replace"), headers)
