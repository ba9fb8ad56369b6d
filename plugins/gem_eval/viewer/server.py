"""Server: the viewer on this machine only, following a record that is still being written.

It listens on the loopback address, answers GET, and refuses a request whose Host is another name: a page elsewhere whose name
was made to point here (DNS rebinding) gets nothing.
"""

from __future__ import annotations

import json
import threading
import urllib.parse
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from gem_core.errors import ConfigError, GemError
from gem_core.records.file import episodes_after
from gem_eval.viewer.page import document, policy
from gem_eval.viewer.payload import Credit, Shelf

__all__ = ["ViewerServer"]

_MOST = 4_000_000
"""Characters of one answer, about; the script asks again at once while there is more."""


class ViewerServer:
    """Serves one record until it is closed."""

    def __init__(
        self,
        path: str | Path,
        *,
        port: int = 0,
        credit: Credit | None = None,
        tokenizer: Any = None,
    ) -> None:
        """`port` 0 takes a free one. The file may not be there yet."""
        self._path, self._credit, self._tokenizer = Path(path), credit or Credit(), tokenizer
        self._lock = threading.Lock()
        self._begin_anew()
        self._generation = 0
        handler = type("_Bound", (_Handler,), {"viewer": self})
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        except OSError as error:
            raise ConfigError(
                f"port {port} cannot be had ({error}); give another --port, or none to take a free one"
            ) from error
        self._server.daemon_threads = True
        self._serving = False
        self.port: int = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/"

    def serve(self) -> None:
        """Serves until `close` is called from another thread, or Ctrl-C."""
        self._serving = True
        self._server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        """Ends `serve` and lets go of the port."""
        if self._serving:  # else it would wait for an end that nobody brings about
            self._server.shutdown()
        self._server.server_close()

    def page(self) -> str:
        """The page, without data."""
        return document(str(self._path), self._credit)

    def lines(self, generation: int, start: int) -> dict[str, Any]:
        """Lines from number `start` on. A file that was replaced by a shorter one has a new generation, and is sent from its
        beginning."""
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
        """Of one episode, within all that were read."""
        with self._lock:
            return self._shelf.advantages(number) if 0 <= number < len(self._shelf) else None

    def _begin_anew(self) -> None:
        self._shelf = Shelf(self._credit, self._tokenizer)
        self._lines: list[str] = []
        self._offset = 0
        self._file: tuple[int, int] | None = None

    def _read(self) -> None:
        try:
            about = self._path.stat()
        except OSError:
            return  # not there yet
        if self._file is not None and (
            self._file != (about.st_dev, about.st_ino) or about.st_size < self._offset
        ):
            self._begin_anew()
            self._generation += 1
        self._file = (about.st_dev, about.st_ino)
        for episode, behind in episodes_after(self._path, self._offset):
            self._lines += self._shelf.add(episode)
            self._offset = behind


class _Handler(BaseHTTPRequestHandler):
    viewer: ViewerServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        port = self.viewer.port
        if self.headers.get("Host") not in (f"127.0.0.1:{port}", f"localhost:{port}"):
            return self._answer(
                HTTPStatus.FORBIDDEN,
                "text/plain",
                "This viewer answers to 127.0.0.1 and localhost only.",
            )
        address = urllib.parse.urlsplit(self.path)
        try:
            asked = {
                name: int(values[0])
                for name, values in urllib.parse.parse_qs(address.query).items()
            }
            if address.path == "/":
                return self._answer(HTTPStatus.OK, "text/html", self.viewer.page())
            if address.path == "/lines":
                found: Any = self.viewer.lines(
                    asked.get("generation", 0), max(0, asked.get("from", 0))
                )
                return self._answer(HTTPStatus.OK, "application/json", json.dumps(found))
            if address.path == "/advantages":
                found = self.viewer.advantages(asked.get("episode", -1))
                return self._answer(HTTPStatus.OK, "application/json", json.dumps(found))
        except ValueError as error:
            if not isinstance(error, GemError):
                return self._answer(
                    HTTPStatus.BAD_REQUEST, "text/plain", "The query must hold whole numbers."
                )
            return self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", str(error))
        return self._answer(HTTPStatus.NOT_FOUND, "text/plain", "There is no such page.")

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        content = text.encode("utf-8", "replace")
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(content)),
            "Content-Security-Policy": policy(live=True) + "; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Nothing: a request every second is no news."""
