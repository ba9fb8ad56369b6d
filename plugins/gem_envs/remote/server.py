"""Server: any environment over HTTP, for `AgentGym` on other hosts and for AgentGym's own clients.

| request                                    | answer (dialect `gem`; for others, see `protocols.py`)                          |
|--------------------------------------------|---------------------------------------------------------------------------------|
| GET /                                      | what is served: env, dialect, turns, options, action_example, plays_at_random,  |
|                                            | sessions                                                                        |
| POST /create                               | a session: an environment of its own                                            |
| POST /reset {session, task}                | the first observation                                                           |
| POST /step {session, action}               | the answer to an action                                                         |
| POST /close {session}                      | gives the session back                                                          |
| GET /observation, /sample_action ?session= | the last observation; a legal action chosen at random, with `&sample=` in       |
|                                            | another way for each number                                                     |

What cannot be answered has a status that says so, whatever the dialect: 400 for a request that cannot be read, 403 for one that a
web page sent, 404 for a path or a session that is not there, 405, 409 for a step out of turn, 413, 415, 500 where the environment
failed, 503 with too many sessions. The body is then `{"error": ...}`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from inspect import isawaitable
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gem_core.arguments import whole_number
from gem_core.env.base import Env
from gem_core.env.maybe_async import awaited
from gem_core.errors import ActionTypeError, ConfigError, OptionError, ResetNeededError
from gem_envs.remote.protocols import dialect

__all__ = ["Server"]

_log = logging.getLogger(__name__)
_LARGEST_BODY = 4 << 20
_SECONDS_TO_CLOSE = 5.0
_POSTS = ("/create", "/reset", "/step", "/close")
_GETS = ("/", "/observation", "/sample_action")


class Server:
    """Serves the environments that `make` makes, one for each session. `with Server(...)` serves on threads of its own."""

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
        """`port` 0 takes a free one. A session nobody asked for `idle_seconds` is closed. Binding fails here, not later."""
        if (
            isinstance(idle_seconds, bool)
            or not isinstance(idle_seconds, (int, float))
            or not idle_seconds > 0
        ):
            raise ConfigError(f"idle_seconds must be a number above 0; given: {idle_seconds!r}")
        self.make, self.name, self.turns = make, name, turns
        self.dialect = _dialect(dialect)
        self.idle_seconds = float(idle_seconds)
        self.max_sessions = whole_number("max_sessions", max_sessions, 1)
        self._sessions: dict[int, _Session] = {}
        self._change = threading.Condition()
        self._closed = False
        probe = (
            make()
        )  # an environment that cannot be made is an error before the first client asks
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
                f"cannot listen on {host} port {port}: {error}; choose another port, or 0 for a free one"
            ) from error
        self._loop = asyncio.new_event_loop()
        """Where async environments live: all calls of one must be made on one loop."""
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
        """Where it listens."""
        host, port = self._http.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    @property
    def sessions(self) -> int:
        """How many there are just now."""
        return len(self._sessions)

    def __enter__(self) -> Server:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self) -> None:
        """Until somebody closes it, or Ctrl-C."""
        with self._change:
            while not self._closed:
                self._change.wait(
                    1.0
                )  # a wait without an end would not be interrupted on every system

    def close(self) -> None:
        """Stops listening and closes every session. Calling it twice is harmless."""
        with self._change:
            if self._closed:
                return
            self._closed = True
            left = [*self._sessions.values()]
            self._sessions.clear()
            self._change.notify_all()
        if self._threads[0].ident is not None:
            self._http.shutdown()
        self._http.server_close()
        deadline = time.monotonic() + _SECONDS_TO_CLOSE
        for session in left:
            self._end(session, max(0.0, deadline - time.monotonic()))
        if self._threads[1].ident is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._threads[1].join(5.0)
        if not self._loop.is_running():
            self._loop.close()

    # What requests ask for.

    def answer(self, method: str, target: str, body: Any) -> Any:
        """The JSON that answers a request; `_Refusal` where there is none."""
        url = urlsplit(target)
        path = url.path.rstrip("/") or "/"
        if path not in (*_POSTS, *_GETS):
            raise _Refusal(
                404,
                f"there is nothing at {path}; the requests: POST {', '.join(_POSTS)}, GET {', '.join(_GETS)}",
            )
        if method != ("POST" if path in _POSTS else "GET"):
            raise _Refusal(405, f"{path} takes {'POST' if path in _POSTS else 'GET'}, not {method}")
        if path == "/":
            return {**self._about, "sessions": self.sessions}
        if path == "/create":
            return self.dialect.creation(self._create())
        asked = body if method == "POST" else {k: v[0] for k, v in parse_qs(url.query).items()}
        session = self._session(asked.get(self.dialect.session))
        if path == "/close":
            with self._change:
                self._sessions.pop(session.number, None)
            self._end(session)
            return self.dialect.closing()
        if not session.lock.acquire(blocking=False):
            raise _Refusal(409, f"the session {session.number} is busy with another request")
        try:
            return self._in_session(session, path, asked)
        finally:
            session.used = time.monotonic()
            session.lock.release()

    def _in_session(self, session: _Session, path: str, body: Mapping[str, Any]) -> Any:
        env = session.env
        if path == "/observation":
            return session.observation
        if path == "/sample_action":
            try:
                if str(body.get("sample", "")).isdecimal() and env.unwrapped.turn == 0:
                    env.unwrapped.vary_actions(int(body["sample"]))
                return env.sample_action()
            except NotImplementedError as error:
                raise _Refusal(404, str(error)) from None
        if path == "/reset":
            seed, options = body.get(self.dialect.task), body.get("options") or {}
            if seed is None and self.dialect.name != "gem":
                seed = 0
            observation, info = self._result(env.reset(seed=seed, options=options))
            session.observation, session.total = observation, 0.0
            return self.dialect.start(session.number, observation, _plain(info))
        if "action" not in body:
            raise _Refusal(400, "POST /step needs 'action'")
        result = self._result(env.step(self.dialect.action(body["action"])))
        session.observation, session.total = result[0], session.total + result[1]
        return self.dialect.turn((*result[:4], _plain(result[4])), session.total)

    def _create(self) -> int:
        with self._change:
            if self._closed or len(self._sessions) >= self.max_sessions:
                raise _Refusal(
                    503,
                    f"all {self.max_sessions} sessions are taken; close one, or try again later",
                )
        made = _Session(self.make())
        with self._change:
            if not self._closed and len(self._sessions) < self.max_sessions:
                self._sessions[made.number] = made
                return made.number
        self._end(made)
        raise _Refusal(
            503, f"all {self.max_sessions} sessions are taken; close one, or try again later"
        )

    def _session(self, number: Any) -> _Session:
        if number is None:
            raise _Refusal(
                400,
                f"the request needs {self.dialect.session!r}, the session that /create answered",
            )
        try:
            return self._sessions[int(number)]
        except (KeyError, TypeError, ValueError):
            raise _Refusal(
                404,
                f"the session {str(number)[:40]} is not valid: unknown, closed, or collected after a pause",
            ) from None

    # Environments, sync or async.

    def _result(self, value: Any) -> Any:
        return (
            asyncio.run_coroutine_threadsafe(awaited(value), self._loop).result()
            if isawaitable(value)
            else value
        )

    def _end(self, session: _Session, patience: float = -1.0) -> None:
        """Closes its environment when no step is under way; waits so many seconds for that, or as long as it takes."""
        if not session.lock.acquire(timeout=patience):
            _log.warning(
                "a session of %s is still in a step, and is left as it is", self._about["env"]
            )
            return
        try:
            self._result(session.env.close())
        except Exception:  # noqa: BLE001 - it is given up either way
            _log.warning("closing a session of %s failed", self._about["env"], exc_info=True)
        finally:
            session.lock.release()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _collect_idle(self) -> None:
        while True:
            with self._change:
                self._change.wait(min(self.idle_seconds / 4, 30.0))
                if self._closed:
                    return
                before = time.monotonic() - self.idle_seconds
                old = [
                    s for s in self._sessions.values() if s.used < before and not s.lock.locked()
                ]
                for session in old:
                    del self._sessions[session.number]
            for session in old:
                self._end(session)


class _Session:
    """An environment of one client's own. Its number cannot be guessed, so that nobody acts in another's by mistake."""

    def __init__(self, env: Env) -> None:
        self.number = secrets.randbits(48)
        self.env = env
        self.lock = threading.Lock()
        self.used = time.monotonic()
        self.observation = ""
        self.total = 0.0


class _Refusal(Exception):
    """Raised when a request gets a status other than 200."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    """One connection, which may carry many requests."""

    protocol_version = "HTTP/1.1"
    timeout = 600.0
    """Seconds until a connection that nobody uses is closed."""
    served: Server

    def _answer(self) -> None:
        try:
            body = self._body()
            self._refuse_pages()
            status, reply = 200, self.served.answer(self.command, self.path, body)
        except _Refusal as refusal:
            status, reply = refusal.status, {"error": str(refusal)}
        except ResetNeededError as error:
            status, reply = 409, {"error": str(error)}
        except (ActionTypeError, OptionError) as error:
            status, reply = 400, {"error": str(error)}
        except Exception as error:  # noqa: BLE001 - an environment may raise anything; its client is told
            _log.warning("%s %s failed", self.command, self.path, exc_info=True)
            status, reply = 500, {"error": f"{type(error).__name__}: {error}"}
        data = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _answer  # noqa: N815 - the names http.server looks for

    def _body(self) -> Any:
        try:
            size = int(self.headers.get("Content-Length") or 0)
        except ValueError:
            size = -1
        if not 0 <= size <= _LARGEST_BODY or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # what follows would be read as the next request
            raise _Refusal(413, f"a request has a Content-Length of {_LARGEST_BODY} bytes at most")
        if not size:
            return {}
        raw = self.rfile.read(size)
        if self.headers.get_content_type() != "application/json":
            # A web page can send a form to any port of its reader's machine, but no JSON.
            raise _Refusal(
                415, "the body of a request is JSON; send Content-Type: application/json"
            )
        try:
            body = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise _Refusal(400, f"the body is not JSON: {error}") from None
        if not isinstance(body, dict):
            raise _Refusal(400, f"the body must be a JSON object; it is {type(body).__name__}")
        return body

    def _refuse_pages(self) -> None:
        """A page that somebody looks at in a browser on this machine reaches its ports too: by requests of its own, which carry
        an Origin, or under a name of its own that it has pointed here."""
        host = urlsplit(f"//{self.headers.get('Host') or ''}").hostname
        local = host is None or host == "localhost" or _is_loopback(host)
        if "Origin" in self.headers or (
            _is_loopback(urlsplit(self.served.url).hostname or "") and not local
        ):
            raise _Refusal(
                403,
                "web pages are not served: the request has an Origin, or a Host that is not this machine's",
            )

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _listener(host: str, port: int, served: Server) -> ThreadingHTTPServer:
    class Listener(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True
        request_queue_size = 1024  # a trainer starts its whole batch at once

        def handle_error(self, request: Any, client_address: Any) -> None:
            _log.debug("a connection broke", exc_info=True)

    return Listener((host, port), type("Handler", (_Handler,), {"served": served}))


def _plain(info: Mapping[str, Any]) -> dict[str, Any]:
    """What of an info JSON can carry; the rest is named in `left_out`."""
    kept: dict[str, Any] = {}
    left_out = []
    for name, value in info.items():
        try:
            kept[name] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError):
            left_out.append(name)
    return {**kept, "left_out": sorted(left_out)} if left_out else kept


_dialect = dialect  # the constructor has an argument of that name
