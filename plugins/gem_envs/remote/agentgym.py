"""AgentGym: an environment that lives on a server, spoken to over HTTP in one of the dialects of `gem_envs.remote.protocols`.

gem-rl serve game:Wordle-v0-easy                                          # on the other host
make("agentgym:Gem-v0", url="http://host:8000")                           # here
make("agentgym:BabyAI-v0", url="http://host:36001", tasks=1000)           # a server of AgentGym's own
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
from gem_envs.remote.protocols import dialect

__all__ = ["AgentGym"]

_lock = threading.Lock()
_clients: dict[Any, Any] = {}


class AgentGym(Env):
    """A session on a server: made at the first reset, given back at close. What the server does wrong voids the episode.

    The seed names the task: it is the server's task number, modulo `tasks` where that is given. The option `index` names one
    directly. `gem-rl serve` takes the number for a seed.
    """

    execution = "thread"
    deterministic = False  # nobody here knows what runs there
    option_names = frozenset({"index"})

    def __init__(
        self,
        url: str = "",
        dialect: str = "gem",
        tasks: int | None = None,
        timeout: float = 300.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`timeout`: seconds for one request."""
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise ConfigError(
                f"an environment on a server needs its address: url='http://host:port'; given: {url!r}"
            )
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
            raise ConfigError(f"timeout must be a number of seconds above 0; given: {timeout!r}")
        self.url, self.timeout = url.rstrip("/"), float(timeout)
        self.dialect = _dialect(dialect)
        self.tasks = None if tasks is None else whole_number("tasks", tasks, 1)
        self._httpx = _library()
        self._headers = dict(headers or {})
        self._session: Any = None
        self._about: Mapping[str, Any] | None = None

    @property
    def accepted_options(self) -> frozenset[str]:
        """Those of the environment there, where the server tells."""
        return (
            self.option_names | frozenset(self._told().get("options", ()))
            if self.dialect.name == "gem"
            else self.option_names
        )

    @property
    def action_example(self) -> str:  # type: ignore[override]
        """What an action looks like, where the server tells."""
        return (
            str(self._told().get("action_example", "action"))
            if self.dialect.name == "gem"
            else "action"
        )

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        options = dict(options)
        index = options.pop("index", None)
        if index is None:
            index = self._seed if self.tasks is None else self._seed % self.tasks
        elif isinstance(index, bool) or not isinstance(index, int) or index < 0:
            raise OptionError(f"index must be a whole number from 0 up; given: {index!r}")
        self.total, self._sample = 0.0, 0
        if self._session is None:
            self._create(index)
        asked = self.dialect.reset_request(index, options)
        try:
            reply = self._in_session("/reset", asked)
        except _UnknownSession:  # collected, or the server was started anew
            self._create(index)
            reply = self._in_session("/reset", asked)
        observation, info = self.dialect.began(reply)
        if self.dialect.observes:
            observation = self.dialect.text(self._get("/observation"), "/observation")
        return observation, {"index": index, **info}

    def on_step(self, action: str) -> StepResult:
        observation, reward, terminated, truncated, info = self.dialect.took(
            self._in_session("/step", {"action": action}), self.total
        )
        self.total += reward
        return observation, reward, terminated, truncated, info

    def on_close(self) -> None:
        if self._session is not None:
            with contextlib.suppress(
                EnvError
            ):  # a session that is not given back is collected there
                self._in_session("/close", {})
            self._session = None

    def sample_action(self) -> str:
        if self.dialect.name != "gem":
            raise NotImplementedError(
                f"a server of the dialect {self.dialect.name!r} does not say which actions are legal"
            )
        if self._session is None:
            raise ResetNeededError("sample_action() before reset(): call reset(seed=...) first")
        return self.dialect.text(self._get("/sample_action", sample=self._sample), "/sample_action")

    def vary_actions(self, number: int) -> None:
        self._sample = number

    @property
    def plays_at_random(self) -> bool:
        """Whether the server says which actions are legal."""
        return self.dialect.name == "gem" and bool(self._told().get("plays_at_random"))

    def _create(self, index: int) -> None:
        self._session = None
        self._session = self.dialect.created(
            self._ask("POST", "/create", self.dialect.create_request(index))
        )

    def _told(self) -> Mapping[str, Any]:
        """What the server says of its environment."""
        if self._about is None:
            about = self._ask("GET", "/")
            if not isinstance(about, Mapping) or "env" not in about:
                raise EnvError(
                    f"{self.url} does not answer like `gem-rl serve`: {str(about)[:120]!r}; is its dialect another?"
                )
            self._about = about
        return self._about

    def _in_session(self, path: str, body: dict[str, Any]) -> Any:
        return self._ask("POST", path, {self.dialect.session: self._session, **body})

    def _get(self, path: str, sample: int = 0) -> Any:
        more = f"&sample={sample}" if sample else ""
        return self._ask("GET", f"{path}?{self.dialect.session}={self._session}{more}")

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer to a request. Everything that is no answer is an `EnvError`, and so is HTTP 200 with an error in it."""
        what = f"{method} {self.url}{path.partition('?')[0]}"
        try:
            client = _client(self._httpx, self._headers)
            response = client.request(method, self.url + path, json=body, timeout=self.timeout)
        except self._httpx.HTTPError as error:
            raise EnvError(
                f"{what} failed: {type(error).__name__}: {error}. Does the server run there?"
            ) from error
        try:
            reply = response.json()
        except ValueError:
            reply = response.text
        problem = reply.get("error") or reply.get("detail") if isinstance(reply, Mapping) else None
        if response.status_code == 200 and not (
            isinstance(reply, Mapping) and set(reply) == {"error"}
        ):
            return reply
        said = f"{what} answered {response.status_code}: {str(problem or reply)[:500]}"
        unknown = (
            response.status_code == 404
            or "not valid" in said
            or "not found" in said
            or "been deleted" in said
        )
        raise _UnknownSession(said) if unknown and self._session is not None else EnvError(said)


class _UnknownSession(EnvError):
    """Raised when a server does not know a session, or not any more."""


_dialect = dialect  # the constructor has an argument of that name


def _library() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise MissingDependencyError("an environment on a server", "http", str(error)) from error
    return httpx


def _client(httpx: Any, headers: Mapping[str, str]) -> Any:
    """One for all environments of a process, since making one takes longer than a step. A fork inherits the sockets, and two that
    read from one take each other's answers: so it has its own."""
    key = (os.getpid(), *sorted(headers.items()))
    with _lock:
        if key not in _clients:
            # No limit on connections: as many episodes are under way as the engine allows.
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
            _clients[key] = httpx.Client(headers=dict(headers), limits=limits)
            atexit.register(_clients[key].close)
        return _clients[key]
