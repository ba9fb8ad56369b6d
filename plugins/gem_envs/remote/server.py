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
request, 401 no token or a wrong one, 403 request from a web page, 404 unknown path or session, 405
wrong method, 409 step before reset or session busy, 413 body too large, 415 not JSON, 429 too many
sessions of this client, 500 environment failure, 503 too many sessions or connections.
"""

from __future__ import annotations

import asyncio
import errno
import json
import math
import socket
import threading
import time
from collections.abc import Callable, Mapping
from inspect import isawaitable
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gem_http.listener import Listener, is_loopback

from gem_core.arguments import whole_number
from gem_core.env.base import Env
from gem_core.env.maybe_async import awaited
from gem_core.errors import ConfigError
from gem_core.records.serialize import from_plain, to_plain
from gem_envs.remote.handler import EnvHandler, is_short_number
from gem_envs.remote.protocols import dialect
from gem_envs.remote.sessions import HttpError, Session, Sessions

__all__ = ["Server"]

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
        token: str = "",
        idle_seconds: float = 3600.0,
        max_sessions: int = 1024,
        max_sessions_per_client: int | None = None,
        max_connections: int = 2048,
        request_seconds: float = 60.0,
    ) -> None:
        """Bind the server; port 0 takes a free port.

        Clients must send the token, if there is one; a host that other machines can reach needs
        one. The server closes a session without requests for `idle_seconds`, and a connection on
        which the header or the body of a request takes over `request_seconds`. A client is an IP
        address; None allows it all sessions.
        """
        if not is_loopback(host) and not token:
            raise ConfigError(
                f"other machines can reach the host {host!r}; pass token=, which clients must send"
            )
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise ConfigError("token must be a string of printable ASCII characters")
        self.turns, self.token = turns, token
        self.dialect = _dialect(dialect)
        most = whole_number("max_sessions", max_sessions, 1)
        per_client = most if max_sessions_per_client is None else max_sessions_per_client
        self.store = Sessions(
            make,
            idle_seconds=_positive("idle_seconds", idle_seconds),
            max_sessions=most,
            max_per_client=whole_number("max_sessions_per_client", per_client, 1),
        )
        probe = make()  # fail before the first client connects
        if not isinstance(probe, Env):
            raise ConfigError(
                f"make must return an environment; it returned {type(probe).__name__} {probe!r}"
            )
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
        seconds = _positive("request_seconds", request_seconds)
        limits = {"header_seconds": seconds, "body_seconds": seconds, "env_server": self}
        handler = type("Handler", (EnvHandler,), limits)
        try:
            self._http = Listener(
                host,
                whole_number("port", port, 0, 65535),
                handler,
                whole_number("max_connections", max_connections, 1),
            )
        except OSError as error:
            advice = ""
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                advice = "; choose another port, or 0 for a free one"
            elif error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
                advice = "; choose an address of this machine, or 0.0.0.0 for all of them"
            raise ConfigError(f"cannot listen on {host} port {port}: {error}{advice}") from error
        self._thread = threading.Thread(
            target=self._http.serve_forever, name="gem-serve-http", daemon=True
        )

    @property
    def url(self) -> str:
        """The URL of the server."""
        host, port = self._http.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    @property
    def sessions(self) -> int:
        """The current number of sessions."""
        return len(self.store)

    def __enter__(self) -> Server:
        self.store.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self) -> None:
        """Block until the server is closed or Ctrl-C is pressed."""
        while not self.store.refused.wait(1.0):  # not every system can interrupt an unlimited wait
            pass

    def close(self) -> None:
        """Stop listening and close every session; a second call does nothing."""
        if not self.store.refuse():
            return
        if self._thread.ident is not None:
            self._http.shutdown()
        self.store.close()
        self._http.server_close()

    def answer(self, method: str, target: str, body: Any, client: str = "") -> Any:
        """Return the JSON reply to a request; raise `HttpError` for an error status."""
        url = urlsplit(target)
        path = url.path.rstrip("/") or "/"
        gets = (*_GETS, *self.dialect.attributes)
        if path not in (*_POSTS, *gets):
            raise HttpError(
                404,
                f"unknown path {path}; expected POST {', '.join(_POSTS)} or GET {', '.join(gets)}",
            )
        expected = "POST" if path in _POSTS else "GET"
        if method != expected:
            raise HttpError(405, f"{path} takes {expected}, not {method}")
        if path == "/":
            return {**self._about, "sessions": self.sessions}
        if path == "/create":
            return self.dialect.create_reply(self.store.create(client).number)
        fields = body if method == "POST" else {k: v[0] for k, v in parse_qs(url.query).items()}
        number = fields.get(self.dialect.session)
        if number is None:
            name = self.dialect.session
            raise HttpError(400, f"the request needs {name!r}, the session from POST /create")
        session = self.store.get(number)
        if path == "/close":
            self.store.remove(session)
            return self.dialect.close_reply()
        if not session.lock.acquire(blocking=False):
            raise HttpError(409, f"the session {session.number} is busy with another request")
        try:
            return self._in_session(session, path, fields)
        finally:
            session.used = time.monotonic()
            session.lock.release()
            if session.closing:  # by a request during this one
                self.store.end(session)

    def _in_session(self, session: Session, path: str, body: Mapping[str, Any]) -> Any:
        env, result = session.env, self.store.result
        if path == "/observation":
            return session.observation
        if path in self.dialect.attributes:
            name = self.dialect.attributes[path]
            if not hasattr(env.unwrapped, name):
                raise HttpError(404, f"{type(env.unwrapped).__name__} has no {name}")
            return getattr(env.unwrapped, name)
        if path == "/sample_action":
            try:
                sample = str(body.get("sample", ""))
                if is_short_number(sample) and env.unwrapped.turn == 0:
                    env.unwrapped.vary_actions(int(sample))
                return env.sample_action()
            except NotImplementedError as error:
                raise HttpError(404, str(error)) from None
        if path == "/reset":
            seed, options = body.get(self.dialect.task), body.get("options") or {}
            if seed is None and self.dialect.name != "gem":
                seed = 0
            observation, info = result(env.reset(seed=seed, options=options))
            session.observation, session.total = observation, 0.0
            return self.dialect.reset_reply(session.number, observation, self._json_info(info))
        if "action" not in body:
            raise HttpError(400, "POST /step needs 'action'")
        step = result(env.step(self.dialect.parse_action(body["action"])))
        session.observation, session.total = step[0], session.total + step[1]
        return self.dialect.step_reply((*step[:4], self._json_info(step[4])), session.total)

    def _json_info(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON-compatible part of an info; `left_out` lists the other names."""
        plain: dict[str, Any] = {}
        left_out = []
        for name, value in info.items():
            try:
                plain[name] = json.loads(json.dumps(value, allow_nan=False))
            except (TypeError, ValueError, RecursionError):
                left_out.append(name)
        plain = from_plain(to_plain(plain, self.store.redactor, info=True))
        return {**plain, "left_out": sorted(left_out)} if left_out else plain


def _positive(name: str, value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        raise ConfigError(f"{name} must be a positive number; got {value!r}")
    return float(value)


_dialect = dialect  # the constructor has an argument of that name
