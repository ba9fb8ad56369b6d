"""HTTP server for any environment, for gem's `AgentGym` client and AgentGym's own clients.

| request                      | reply in the dialect `gem` (others: see `protocols.py`)          |
|------------------------------|------------------------------------------------------------------|
| GET /                        | env, dialect, turns, options, action_example, plays_at_random,   |
|                              | sessions                                                         |
| POST /create                 | a new session with its own environment                           |
| POST /reset {session, task}  | the first observation                                            |
| POST /step {session, action} | the result of the action                                         |
| POST /close {session}        | closes the session                                               |
| GET /observation?session=    | the last observation                                             |
| GET /sample_action?session=  | a random legal action; `&sample=N` varies the random sequence    |

An error has the body `{"error": ...}` and, in every dialect, one of these statuses: 400 malformed
request, 403 request from a web page, 404 unknown path or session, 405 wrong method, 409 step
before reset or session busy, 413 body too large, 415 not JSON, 500 environment failure, 503 too
many sessions.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import socket
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from inspect import isawaitable
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gem_core.arguments import whole_number
from gem_core.env.base import Env
from gem_core.env.maybe_async import awaited
from gem_core.errors import ActionTypeError, ConfigError, OptionError, ResetNeededError
from gem_core.records.redact import Redactor
from gem_core.records.serialize import from_plain, to_plain
from gem_envs.remote.protocols import dialect

__all__ = ["Server"]

_log = logging.getLogger(__name__)
_LARGEST_BODY = 4 << 20
_SECONDS_TO_CLOSE = 5.0
_SECONDS_TO_READ = 60.0
"""The time in which a client must send a request."""
_MOST_DIGITS = 18
"""Python converts at most 4300 digits; a session has 15."""
_POSTS = ("/create", "/reset", "/step", "/close")
_GETS = ("/", "/observation", "/sample_action")


class Server:
    """A server that calls `make` for each session; `with Server(...)` serves on its own threads."""

    def __init__(
        self,
        make: Callable[[], Env],
        *,
        name: str = "",
        turns: int | None = None,
        dialect: str = "gem",
        host: str = "127.0.0.1",
        port: int = 0,
        idle_seconds: float = 3600.0,
        max_sessions: int = 1024,
    ) -> None:
        """Bind the server; port 0 takes a free port.

        The server closes a session without requests for `idle_seconds`.
        """
        number = isinstance(idle_seconds, (int, float)) and not isinstance(idle_seconds, bool)
        if not number or not idle_seconds > 0:
            raise ConfigError(f"idle_seconds must be a positive number; got {idle_seconds!r}")
        self.make, self.name, self.turns = make, name, turns
        self.dialect = _dialect(dialect)
        self.idle_seconds = float(idle_seconds)
        self.max_sessions = whole_number("max_sessions", max_sessions, 1)
        self._sessions: dict[int, _Session] = {}
        self._change = threading.Condition()
        self._closed = False
        self.redactor = Redactor()
        self.reading: dict[socket.socket, float] = {}
        """The connections whose request is incomplete, with the time of its first byte."""
        probe = make()  # fail before the first client connects
        self._about = {
            "env": name or type(probe.unwrapped).__name__,
            "dialect": self.dialect.name,
            "turns": turns,
            "options": sorted(probe.accepted_options),
            "action_example": probe.action_example,
            "plays_at_random": probe.unwrapped.plays_at_random,
        }
        if isawaitable(closing := probe.close()):
            asyncio.run(awaited(closing))
        try:
            self._http = _listener(host, whole_number("port", port, 0, 65535), self)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host} port {port}: {error}; "
                "choose another port, or 0 for a free one"
            ) from error
        self._loop = asyncio.new_event_loop()
        """The loop of all async environments; an environment's calls must share one loop."""
        self._threads = [
            threading.Thread(target=target, name=f"gem-serve-{kind}", daemon=True)
            for kind, target in (
                ("http", self._http.serve_forever),
                ("loop", self._run_loop),
                ("idle", self._collect_idle),
            )
        ]

    @property
    def url(self) -> str:
        """The URL of the server."""
        host, port = self._http.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    @property
    def sessions(self) -> int:
        """The current number of sessions."""
        return len(self._sessions)

    def __enter__(self) -> Server:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self) -> None:
        """Block until the server is closed or Ctrl-C is pressed."""
        with self._change:
            while not self._closed:
                self._change.wait(1.0)  # not every system can interrupt an unlimited wait

    def close(self) -> None:
        """Stop listening and close every session; a second call does nothing."""
        with self._change:
            if self._closed:
                return
            self._closed = True
            sessions = [*self._sessions.values()]
            self._sessions.clear()
            self._change.notify_all()
        if self._threads[0].ident is not None:
            self._http.shutdown()
        self._http.server_close()
        deadline = time.monotonic() + _SECONDS_TO_CLOSE
        for session in sessions:
            self._end(session, max(0.0, deadline - time.monotonic()))
        if self._threads[1].ident is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._threads[1].join(5.0)
        if not self._loop.is_running():
            self._loop.close()

    # Requests.

    def answer(self, method: str, target: str, body: Any) -> Any:
        """Return the JSON reply to a request; raise `_HttpError` for an error status."""
        url = urlsplit(target)
        path = url.path.rstrip("/") or "/"
        if path not in (*_POSTS, *_GETS):
            raise _HttpError(
                404,
                f"unknown path {path}; expected POST {', '.join(_POSTS)} or GET {', '.join(_GETS)}",
            )
        expected = "POST" if path in _POSTS else "GET"
        if method != expected:
            raise _HttpError(405, f"{path} takes {expected}, not {method}")
        if path == "/":
            return {**self._about, "sessions": self.sessions}
        if path == "/create":
            return self.dialect.create_reply(self._create())
        fields = body if method == "POST" else {k: v[0] for k, v in parse_qs(url.query).items()}
        session = self._session(fields.get(self.dialect.session))
        if path == "/close":
            with self._change:
                self._sessions.pop(session.number, None)
            session.closing = True
            self._end(session, 0.0)
            return self.dialect.close_reply()
        if not session.lock.acquire(blocking=False):
            raise _HttpError(409, f"the session {session.number} is busy with another request")
        try:
            return self._in_session(session, path, fields)
        finally:
            session.used = time.monotonic()
            session.lock.release()
            if session.closing:  # by a request during this one
                self._end(session)

    def _in_session(self, session: _Session, path: str, body: Mapping[str, Any]) -> Any:
        env = session.env
        if path == "/observation":
            return session.observation
        if path == "/sample_action":
            try:
                sample = str(body.get("sample", ""))
                if _is_short_number(sample) and env.unwrapped.turn == 0:
                    env.unwrapped.vary_actions(int(sample))
                return env.sample_action()
            except NotImplementedError as error:
                raise _HttpError(404, str(error)) from None
        if path == "/reset":
            seed, options = body.get(self.dialect.task), body.get("options") or {}
            if seed is None and self.dialect.name != "gem":
                seed = 0
            observation, info = self._result(env.reset(seed=seed, options=options))
            session.observation, session.total = observation, 0.0
            return self.dialect.reset_reply(session.number, observation, self._json_info(info))
        if "action" not in body:
            raise _HttpError(400, "POST /step needs 'action'")
        result = self._result(env.step(self.dialect.parse_action(body["action"])))
        session.observation, session.total = result[0], session.total + result[1]
        return self.dialect.step_reply((*result[:4], self._json_info(result[4])), session.total)

    def _create(self) -> int:
        full = f"all {self.max_sessions} sessions are taken; close one or try again later"
        with self._change:
            if self._closed or len(self._sessions) >= self.max_sessions:
                raise _HttpError(503, full)
        self.redactor.refresh()
        session = _Session(self.make())
        with self._change:
            if not self._closed and len(self._sessions) < self.max_sessions:
                self._sessions[session.number] = session
                return session.number
        self._end(session)
        raise _HttpError(503, full)

    def _session(self, number: Any) -> _Session:
        name = self.dialect.session
        if number is None:
            raise _HttpError(400, f"the request needs {name!r}, the session from POST /create")
        try:
            return self._sessions[int(number)]
        except (KeyError, TypeError, ValueError, OverflowError):
            raise _HttpError(
                404,
                f"the session {str(number)[:40]} is not valid: it is unknown, closed, "
                f"or was idle for {self.idle_seconds:g} s",
            ) from None

    # Environments, sync or async.

    def _result(self, value: Any) -> Any:
        if not isawaitable(value):
            return value
        return asyncio.run_coroutine_threadsafe(awaited(value), self._loop).result()

    def _end(self, session: _Session, patience: float = -1.0) -> None:
        """Wait up to `patience` seconds (-1: forever) for the current step, then close the env."""
        if not session.lock.acquire(timeout=patience):
            if not session.closing:  # otherwise the step closes it
                _log.warning(
                    "a session of %s is still in a step; not closing it", self._about["env"]
                )
            return
        try:
            self._result(session.env.close())
        except BaseException:  # noqa: BLE001 - the session is dropped either way
            self.log_error("closing a session of %s failed", self._about["env"])
        finally:
            session.lock.release()

    def log_error(self, message: str, *args: object) -> None:
        """Log the current exception without secrets."""
        _log.warning(
            f"{message}\n%s", *args, self.redactor.program_text(traceback.format_exc().rstrip())
        )

    def _json_info(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON-compatible part of an info; `left_out` lists the other names."""
        plain: dict[str, Any] = {}
        left_out = []
        for name, value in info.items():
            try:
                plain[name] = json.loads(json.dumps(value, allow_nan=False))
            except (TypeError, ValueError, RecursionError):
                left_out.append(name)
        plain = from_plain(to_plain(plain, self.redactor, info=True))
        return {**plain, "left_out": sorted(left_out)} if left_out else plain

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _collect_idle(self) -> None:
        while True:
            with self._change:
                self._change.wait(min(self.idle_seconds / 4, _SECONDS_TO_READ / 2))
                if self._closed:
                    return
                self._cut_slow_requests()
                before = time.monotonic() - self.idle_seconds
                idle = [
                    s for s in self._sessions.values() if s.used < before and not s.lock.locked()
                ]
                for session in idle:
                    del self._sessions[session.number]
            for session in idle:
                self._end(session)

    def _cut_slow_requests(self) -> None:
        before = time.monotonic() - _SECONDS_TO_READ
        for connection, started in list(self.reading.items()):
            if started < before:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _Session:
    """The environment of one client; its random number keeps others from using it by mistake."""

    def __init__(self, env: Env) -> None:
        self.number = secrets.randbits(48)
        self.env = env
        self.lock = threading.Lock()
        self.used = time.monotonic()
        self.observation = ""
        self.total = 0.0
        self.closing = False


class _HttpError(Exception):
    """Raised for a reply with a status other than 200."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    """Handler of a connection, which may carry many requests."""

    protocol_version = "HTTP/1.1"
    timeout = 600.0
    """The time in seconds after which an idle connection is closed."""
    disable_nagle_algorithm = True  # it delays the second packet of a reply by 40 ms
    gem_server: Server

    def handle_one_request(self) -> None:
        self.close_connection = True
        try:
            if not self.rfile.peek(1):  # type: ignore[attr-defined]  # wait
                return
            self.gem_server.reading[self.connection] = time.monotonic()
            super().handle_one_request()
        except OSError:  # the client went away, or was idle or too slow
            self.close_connection = True
        finally:
            self.gem_server.reading.pop(self.connection, None)

    def _answer(self) -> None:
        redact = self.gem_server.redactor.program_text
        try:
            body = self._body()
            self.gem_server.reading.pop(self.connection, None)
            self._reject_web_pages()
            status, reply = 200, self.gem_server.answer(self.command, self.path, body)
        except _HttpError as error:
            status, reply = error.status, {"error": str(error)}
        except ResetNeededError as error:
            status, reply = 409, {"error": str(error)}
        except (ActionTypeError, OptionError) as error:
            status, reply = 400, {"error": str(error)}
        except BaseException as error:  # noqa: BLE001 - report any environment error to the client
            self.gem_server.log_error("%s %s failed", self.command, self.path)
            status, reply = 500, {"error": redact(f"{type(error).__name__}: {error}")}
        data = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _answer  # noqa: N815 - http.server's names

    def _body(self) -> Any:
        lengths = self.headers.get_all("Content-Length") or ["0"]
        size = int(lengths[0]) if len(lengths) == 1 and _is_short_number(lengths[0]) else -1
        if not 0 <= size <= _LARGEST_BODY or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # the unread body would be taken for the next request
            raise _HttpError(
                413, f"the body must have a Content-Length of at most {_LARGEST_BODY} bytes"
            )
        if not size:
            return {}
        raw = self.rfile.read(size)
        if self.headers.get_content_type() != "application/json":
            # A web page can post a form to any local port, but it cannot post JSON.
            raise _HttpError(415, "the body must be JSON; send Content-Type: application/json")
        try:
            body = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise _HttpError(400, f"the body is not JSON: {error}") from None
        if not isinstance(body, dict):
            raise _HttpError(400, f"the body must be a JSON object; got {type(body).__name__}")
        return body

    def _reject_web_pages(self) -> None:
        """Reject requests from web pages in a browser on this machine.

        Such requests have an Origin, or a foreign Host name that resolves to this machine (DNS
        rebinding).
        """
        host = urlsplit(f"//{self.headers.get('Host') or ''}").hostname
        local = host is None or host == "localhost" or _is_loopback(host)
        listens_locally = _is_loopback(urlsplit(self.gem_server.url).hostname or "")
        if "Origin" in self.headers or (listens_locally and not local):
            raise _HttpError(
                403,
                "requests from web pages are rejected: "
                "the request has an Origin or a foreign Host header",
            )

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _listener(host: str, port: int, server: Server) -> ThreadingHTTPServer:
    class Listener(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True
        request_queue_size = 1024  # a trainer starts all episodes of a batch at once

        def handle_error(self, request: Any, client_address: Any) -> None:
            _log.debug("a connection failed", exc_info=True)

    return Listener((host, port), type("Handler", (_Handler,), {"gem_server": server}))


def _is_short_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS


_dialect = dialect  # the constructor has an argument of that name
