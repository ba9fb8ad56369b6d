"""OpenEnv: a server of OpenEnv's as an environment, text in and text out, over its WebSocket.

    make("openenv:Server-v0", url="http://host:8000")

OpenEnv's actions and observations are objects. The server's own schema says which fields an action has: where one of them takes
the text, it gets it; where there are several, the action is written as a JSON object. An observation with one text in it is that
text, every other is written field by field. A server of MCP tools is asked for its tools, and an action is a call of one.

It speaks the protocol of `openenv` 0.10 and needs `websockets` only: the package itself brings a web framework with it.
"""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from gem_core.env.base import Env, ResetResult, StepResult
from gem_core.errors import ConfigError, EnvError, MissingDependencyError, OptionError

__all__ = ["OpenEnv"]

_LARGEST_MESSAGE = 100 << 20
_NUMBERS = {"integer": int, "number": float}
_CALL = '{"tool_name": "NAME", "arguments": {...}}'


class OpenEnv(Env):
    """A session on the server, which lasts until `close`. An action the server cannot read says so and costs a turn; everything
    else that goes wrong there voids the episode. The option `reset` holds further parameters for the server's reset."""

    execution = "thread"
    deterministic = False  # nobody here knows what runs there
    option_names = frozenset({"reset"})

    def __init__(
        self,
        url: str = "",
        action_field: str | None = None,
        observation_field: str | None = None,
        timeout: float = 300.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`action_field`: the field of an action that takes the text; `observation_field`: the one of an observation that is
        shown. `timeout`: seconds for one answer. `headers` go with every connection, such as an Authorization."""
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise ConfigError(
                f"an OpenEnv server needs its address: url='http://host:port'; given: {url!r}"
            )
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
            raise ConfigError(f"timeout must be a number of seconds above 0; given: {timeout!r}")
        self.url, self.timeout, self.headers = url.rstrip("/"), float(timeout), dict(headers or {})
        self.action_field, self.observation_field = action_field, observation_field
        self._library = _library()
        self._held = contextlib.ExitStack()
        self._connection: Any = None
        self._fields: dict[str, Mapping[str, Any]] | None = None
        self._tools: list[Mapping[str, Any]] | None = None

    @property
    def action_example(self) -> str:  # type: ignore[override]
        """What an action looks like, once the server has said so."""
        if self._fields is None or self._main_field() is not None:
            return "action"
        return _CALL if self._tools is not None else json.dumps(dict.fromkeys(self._fields, "..."))

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        more = options.get("reset", {})
        if not isinstance(more, Mapping):
            raise OptionError(
                f"the option reset must be a mapping of parameters of the server's reset; given: {more!r}"
            )
        self._connect()
        told = self._ask({"type": "reset", "data": {"seed": self._seed, **more}})
        if told.get("done"):
            raise EnvError(
                f"the episode at {self.url} was over as soon as it had begun: {str(told)[:200]}"
            )
        return self._text(told), {"system": self._instruction(), **self._info(told)}

    def on_step(self, action: str) -> StepResult:
        sent = self._action(action)
        if isinstance(sent, str):
            return sent, 0.0, False, False, {"action_failed": True}
        try:
            told = self._ask({"type": "step", "data": sent})
        except _Unreadable as error:
            return str(error), 0.0, False, False, {"action_failed": True}
        reward = told.get("reward")
        if reward is not None and not isinstance(reward, (int, float)):
            raise EnvError(
                f"the server at {self.url} answered with the reward {reward!r}; it must be a number"
            )
        return (
            self._text(told),
            float(reward or 0.0),
            bool(told.get("done")),
            False,
            self._info(told),
        )

    def on_close(self) -> None:
        self._connection = None
        self._held.close()

    # Text and objects.

    def _action(self, text: str) -> dict[str, Any] | str:
        """The object an action stands for, or what is wrong with it."""
        fields = self._fields or {}
        try:
            given = json.loads(text)
        except (ValueError, RecursionError):
            given = None
        if self._tools is not None:
            if isinstance(given, dict) and "tool_name" in given:
                return {
                    "type": "call_tool",
                    "tool_name": given["tool_name"],
                    "arguments": given.get("arguments") or {},
                }
            return f"An action is a call of a tool: {_CALL}. The tools: {', '.join(str(t.get('name')) for t in self._tools)}."
        if isinstance(given, dict) and given and set(given) <= set(fields):
            return given
        main = self._main_field()
        if main is None:
            return f"An action is a JSON object with these fields: {', '.join(fields) or 'none'}."
        number = _NUMBERS.get(str(fields.get(main, {}).get("type")))
        if number is None:
            return {main: text}
        try:
            return {main: number(text.strip())}
        except ValueError:
            return f"An action is a number; that is none: {text[:40]!r}."

    def _main_field(self) -> str | None:
        """The field that takes the text of an action: the one that was named, the only one, or the only one that is needed."""
        if self.action_field is not None:
            return self.action_field
        if self._fields is None or self._tools is not None:
            return None
        needed = [name for name, field in self._fields.items() if "default" not in field]
        for names in (list(self._fields), needed):
            if len(names) == 1 and self._fields[names[0]].get("type") in (
                "string",
                "integer",
                "number",
            ):
                return names[0]
        return None

    def _text(self, told: Mapping[str, Any]) -> str:
        observation = told.get("observation")
        if not isinstance(observation, Mapping):
            raise EnvError(
                f"the server at {self.url} answered without an observation: {str(told)[:200]}"
            )
        if self.observation_field is not None:
            if self.observation_field not in observation:
                there = ", ".join(observation)
                raise EnvError(
                    f"the observations of {self.url} have no field {self.observation_field!r}; they have: {there}"
                )
            return _written(observation[self.observation_field])
        shown = {
            k: v for k, v in observation.items() if k != "metadata" and v not in (None, "", [], {})
        }
        if len(shown) == 1 and isinstance(next(iter(shown.values())), str):
            return str(next(iter(shown.values())))
        return (
            "\n".join(f"{name}: {_written(value)}" for name, value in shown.items()) or "(nothing)"
        )

    def _info(self, told: Mapping[str, Any]) -> dict[str, Any]:
        metadata = told.get("metadata") or {}
        info: dict[str, Any] = {"observation": dict(told["observation"])}
        if told.get("done") and isinstance(metadata.get("success"), bool):
            info["success"] = metadata["success"]
        return info

    def _instruction(self) -> str:
        """What the server says of its actions."""
        if self._tools is not None:
            tools = "\n".join(
                f"- {t.get('name')}: {t.get('description')} {json.dumps(t.get('input_schema'))}"
                for t in self._tools
            )
            return f"You act by calling tools, one call for each of your messages, written as {_CALL}. The tools:\n{tools}"
        fields = "\n".join(
            f"- {k} ({f.get('type', 'any')}): {f.get('description', '')}"
            for k, f in (self._fields or {}).items()
        )
        main = self._main_field()
        if main is not None:
            said = (self._fields or {}).get(main, {}).get("description", "")
            return f"Each of your messages is one action, the {main}. {said}".rstrip()
        return f"Each of your messages is one action, a JSON object with these fields:\n{fields}"

    # The server.

    def _connect(self) -> None:
        if self._connection is not None and self._connection.state.name == "OPEN":
            return
        self.on_close()
        if self._fields is None:
            self._fields = self._schema()
        try:
            opened = self._library.connect(
                f"ws{self.url.removeprefix('http')}/ws",
                open_timeout=self.timeout,
                max_size=_LARGEST_MESSAGE,
                additional_headers=self.headers,
                proxy=None if self._is_local() else True,
            )
            self._connection = self._held.enter_context(opened)
        except (OSError, self._exceptions.WebSocketException) as error:
            raise EnvError(
                f"{self.url} cannot be reached: {type(error).__name__}: {error}. Does the server run there?"
            ) from error
        if self._tools is None and (not self._fields or "tool_name" in self._fields):
            self._tools = self._ask({"type": "step", "data": {"type": "list_tools"}})[
                "observation"
            ].get("tools", [])

    def _is_local(self) -> bool:
        return urlsplit(self.url).hostname in ("127.0.0.1", "localhost", "::1")

    def _opener(self) -> urllib.request.OpenerDirector:
        around = [urllib.request.ProxyHandler({})] if self._is_local() else []
        return urllib.request.build_opener(_NoRedirect, *around)

    def _schema(self) -> dict[str, Mapping[str, Any]]:
        """The fields of an action, by name."""
        request = urllib.request.Request(f"{self.url}/schema", headers=self.headers)
        try:
            with self._opener().open(request, timeout=self.timeout) as response:
                schema = json.load(response)["action"]
            return {
                name: field
                for name, field in schema.get("properties", {}).items()
                if name not in ("metadata", "type")
            }
        except (OSError, ValueError, LookupError, AttributeError) as error:
            raise EnvError(
                f"{self.url}/schema did not say what an action is ({type(error).__name__}: {error}); is this an OpenEnv server?"
            ) from error

    def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        try:
            self._connection.send(json.dumps(message))
            reply = json.loads(self._connection.recv(timeout=self.timeout))
        except (OSError, ValueError, self._exceptions.WebSocketException) as error:
            self.on_close()  # an answer that comes too late would be taken for that to the next question
            what = f"the {message['type']} at {self.url}"
            raise EnvError(
                f"{what} failed: {type(error).__name__}: {error or 'no answer in time'}"
            ) from error
        data = reply.get("data") or {}
        if reply.get("type") != "error":
            return dict(data)
        said = str(data.get("message", "an error"))
        for problem in data.get("errors") or ():
            said += f"; {'.'.join(map(str, problem.get('loc', ())))}: {problem.get('msg')}"
        if data.get("code") == "VALIDATION_ERROR" and message["type"] == "step":
            raise _Unreadable(f"The action was not understood: {said}")
        raise EnvError(
            f"the server at {self.url} answered the {message['type']} with an error ({data.get('code')}): {said}"
        )

    @property
    def _exceptions(self) -> Any:
        import websockets.exceptions

        return websockets.exceptions


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """What goes with a request, such as an Authorization, is for the server that was named, and not for where it points."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _Unreadable(EnvError):
    """Raised when the server cannot read an action."""


def _written(value: object) -> str:
    """A value as text; of a tool's result, what the tool said."""
    parts = value.get("content") if isinstance(value, Mapping) else None
    if (
        isinstance(parts, list)
        and parts
        and all(isinstance(part, Mapping) and "text" in part for part in parts)
    ):
        return "\n".join(str(part["text"]) for part in parts)
    return value if isinstance(value, str) else json.dumps(value)


def _library() -> Any:
    try:
        import websockets.sync.client
    except ImportError as error:
        raise MissingDependencyError("an OpenEnv server", "openenv", str(error)) from error
    return websockets.sync.client
