"""HTTP client for environments on AgentGym servers and on `gem-rl serve`.

gem-rl serve game:Wordle-v0-easy                                          # on the other host
make("agentgym:Gem-v0", url="http://host:8000")                           # here
make("agentgym:BabyAI-v0", url="http://host:36001", tasks=1000)           # an AgentGym server

`gem_envs.remote.protocols` defines the dialects of the servers.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Mapping
from typing import Any

from gem_core.arguments import whole_number
from gem_core.env.base import Env, ResetResult, StepResult
from gem_core.errors import (
    ConfigError,
    EnvError,
    MissingDependencyError,
    OptionError,
    ResetNeededError,
)
from gem_core.wrappers.formats import without_surrogates
from gem_envs.remote.address import checked_url
from gem_envs.remote.protocols import dialect

__all__ = ["AgentGym"]

_lock = threading.Lock()
_clients: dict[Any, Any] = {}


class AgentGym(Env):
    """An environment on a server. A server error fails the episode.

    The first reset creates a session; `close` closes it. The seed is the server's task number,
    modulo `tasks` if that is set; the option `index` sets the number directly. `gem-rl serve` uses
    the number as its seed.
    """

    execution = "thread"
    deterministic = False  # the server's environment is unknown
    option_names = frozenset({"index"})

    def __init__(
        self,
        url: str = "",
        dialect: str = "gem",
        tasks: int | None = None,
        timeout: float = 300.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Create the client; with `gem-rl serve`, request the description of its environment.

        `timeout` is the time limit of a request in seconds. The URL may have a user and a password.
        """
        self.url, self._credentials = checked_url(url)
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
            raise ConfigError(f"timeout must be a positive number of seconds; got {timeout!r}")
        self.timeout = float(timeout)
        self.dialect = _dialect(dialect)
        self.tasks = None if tasks is None else whole_number("tasks", tasks, 1)
        self._httpx = _library()
        self._headers = dict(headers or {})
        self._session: Any = None
        self._about = self._description() if self.dialect.name == "gem" else {}

    @property
    def accepted_options(self) -> frozenset[str]:
        """`index` and, with `gem-rl serve`, the options of the served environment."""
        return self.option_names | frozenset(self._about.get("options", ()))

    @property
    def action_example(self) -> str:  # type: ignore[override]
        """An example of an action, with `gem-rl serve` that of the served environment."""
        return str(self._about.get("action_example", "action"))

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        options = dict(options)
        index = options.pop("index", None)
        if index is None:
            index = self._seed if self.tasks is None else self._seed % self.tasks
        elif isinstance(index, bool) or not isinstance(index, int) or index < 0:
            raise OptionError(f"index must be a non-negative integer; got {index!r}")
        self.total, self._sample = 0.0, 0
        if self._session is None:
            self._create(index)
        body = self.dialect.reset_request(index, options)
        try:
            reply = self._in_session("/reset", body)
        except _UnknownSession:  # the server collected it or was restarted
            self._create(index)
            reply = self._in_session("/reset", body)
        observation, info = self.dialect.parse_reset(reply)
        if self.dialect.observes:
            observation = self.dialect.text(self._get("/observation"), "/observation")
        return observation, {"index": index, **info}

    def on_step(self, action: str) -> StepResult:
        reply = self._in_session("/step", {"action": without_surrogates(action)})
        result = self.dialect.parse_step(reply, self.total)
        self.total += result[1]
        return result

    def on_close(self) -> None:
        if self._session is not None:
            with contextlib.suppress(EnvError):  # the server collects idle sessions anyway
                self._in_session("/close", {})
            self._session = None

    def sample_action(self) -> str:
        if self.dialect.name != "gem":
            raise NotImplementedError(
                f"servers of the dialect {self.dialect.name!r} do not list the legal actions"
            )
        if self._session is None:
            raise ResetNeededError("sample_action() before reset(): call reset(seed=...) first")
        return self.dialect.text(self._get("/sample_action", sample=self._sample), "/sample_action")

    def vary_actions(self, number: int) -> None:
        self._sample = number

    @property
    def plays_at_random(self) -> bool:
        """Whether the server can sample legal actions."""
        return bool(self._about.get("plays_at_random"))

    def _create(self, index: int) -> None:
        self._session = None
        reply = self._request("POST", "/create", self.dialect.create_request(index))
        self._session = self.dialect.parse_create(reply)

    def _description(self) -> Mapping[str, Any]:
        """Fetch the server's description of its environment."""
        about = self._request("GET", "/")
        if not isinstance(about, Mapping) or "env" not in about:
            raise EnvError(
                f"{self.url} does not answer like `gem-rl serve`: {str(about)[:120]!r}; "
                "set `dialect` to the server's dialect"
            )
        return about

    def _in_session(self, path: str, body: dict[str, Any]) -> Any:
        return self._request("POST", path, {self.dialect.session: self._session, **body})

    def _get(self, path: str, sample: int = 0) -> Any:
        query = f"{self.dialect.session}={self._session}"
        if sample:
            query += f"&sample={sample}"
        return self._request("GET", f"{path}?{query}")

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request and return the reply.

        Raise `EnvError` for a failed request and for an error in an HTTP 200 reply.
        """
        request = f"{method} {self.url}{path.partition('?')[0]}"
        try:
            client = _client(self._httpx, self._headers)
            response = client.request(
                method, self.url + path, json=body, timeout=self.timeout, auth=self._credentials
            )
        except self._httpx.HTTPError as error:
            raise EnvError(
                f"{request} failed: {type(error).__name__}: {error}; is the server running?"
            ) from error
        try:
            reply = response.json()
        except ValueError:
            reply = response.text
        problem = reply.get("error") or reply.get("detail") if isinstance(reply, Mapping) else None
        only_error = isinstance(reply, Mapping) and set(reply) == {"error"}
        if response.status_code == 200 and not only_error:
            return reply
        message = f"{request} answered {response.status_code}: {str(problem or reply)[:500]}"
        if self._session is not None and self._is_unknown(
            response.status_code, str(problem or reply)
        ):
            raise _UnknownSession(message)
        raise EnvError(message)

    def _is_unknown(self, status: int, problem: str) -> bool:
        """Whether an error means that the server does not know the session.

        AgentGym's servers report it with HTTP 200 and a text. The text of a 500 is the
        environment's own.
        """
        if self.dialect.name == "gem" or status >= 500:
            return status == 404
        texts = ("not valid", "not found", "been deleted")
        return status == 404 or any(text in problem for text in texts)


class _UnknownSession(EnvError):
    """Raised when the server does not know the session (any more)."""


_dialect = dialect  # the constructor has an argument of that name


def _library() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise MissingDependencyError("an environment on a server", "http", str(error)) from error
    return httpx


def _client(httpx: Any, headers: Mapping[str, str]) -> Any:
    """Return the HTTP client that all environments of a process share.

    Creating a client takes longer than a step. A forked process gets its own: on inherited sockets,
    two processes would read each other's replies.
    """
    key = (os.getpid(), *sorted(headers.items()))
    with _lock:
        if key not in _clients:
            # No limit on connections: the engine limits the number of concurrent episodes.
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
            _clients[key] = httpx.Client(headers=dict(headers), limits=limits)
            atexit.register(_clients[key].close)
        return _clients[key]
