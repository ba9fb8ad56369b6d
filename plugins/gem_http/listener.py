"""HTTP listener: a threaded server with limits on its connections and on the time of a request.

`http.server` has no such limits: clients that send a byte a minute hold a thread each, for ever.
"""

from __future__ import annotations

import io
import logging
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Any

__all__ = ["Handler", "Listener", "is_loopback"]

_log = logging.getLogger(__name__)
_FULL = b"HTTP/1.1 503 Too many connections\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Listener(ThreadingHTTPServer):
    """A server with a thread for each of at most `max_connections` connections."""

    daemon_threads = True
    request_queue_size = 1024  # a trainer starts all episodes of a batch at once

    def __init__(
        self, host: str, port: int, handler: type[Handler], max_connections: int = 2048
    ) -> None:
        """Bind the port; 0 selects a free one."""
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._free = threading.Semaphore(max_connections)
        self._open: set[socket.socket] = set()
        super().__init__((host, port), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            with suppress(OSError):
                request.setblocking(False)
                request.send(_FULL)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.discard(request)
            self._free.release()

    def server_close(self) -> None:
        """Stop listening and end the open connections."""
        super().server_close()
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a connection failed", exc_info=True)


class Handler(BaseHTTPRequestHandler):
    """Handler of a connection, which may carry many requests."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # it delays the second packet of a reply by 40 ms
    idle_seconds = 600.0
    """How long a connection may be open without a request."""
    header_seconds = 20.0
    """The time in which a client must send the header of a request."""
    body_seconds = 60.0
    """The time in which it must send the body."""
    reply_seconds = 60.0
    """The time in which it must receive the reply."""

    def setup(self) -> None:
        """Read the connection with the limits above."""
        super().setup()
        self._input = _TimedInput(self.connection)
        self.rfile = self._buffer = io.BufferedReader(self._input)

    def handle_one_request(self) -> None:
        self.close_connection = True
        try:
            self._input.limit(self.idle_seconds)
            if self._buffer.peek(1):
                self._input.limit(self.header_seconds)
                super().handle_one_request()
        except OSError:  # the client went away, or was idle or too slow
            self.close_connection = True

    def read_body(self, size: int) -> bytes:
        """Read the body of the request."""
        self._input.limit(self.body_seconds)
        return self.rfile.read(size)

    def reply(
        self, status: int, kind: str, content: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send the reply to the request."""
        self.connection.settimeout(self.reply_seconds)
        self.send_response(status)
        lengths = {"Content-Type": kind, "Content-Length": str(len(content))}
        for name, value in {**lengths, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)


class _TimedInput(io.RawIOBase):
    """The bytes from a socket, until a time: a timeout of the socket applies to each read only."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._end = 0.0

    def limit(self, seconds: float) -> None:
        """Allow this many seconds from now on."""
        self._end = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the client is too slow")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host name or address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
