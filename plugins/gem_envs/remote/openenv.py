"""WebSocket client for OpenEnv servers, as environments with text observations and actions.

    make("openenv:Server-v0", url="http://host:8000")

OpenEnv's actions and observations are objects; the server's schema lists the fields of an action.
If one field takes the text, the action is that text. Otherwise the action is a JSON object. An
observation with a single text field is that text; any other is written field by field. With a
server of MCP tools, an action is a tool call.

The client implements the protocol of `openenv` 0.10 with `websockets` alone, because the `openenv`
package depends on a web framework.
"""

from __future__ import annotations

import base64
import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from gem_core.env.base import Env, ResetResult, StepResult
from gem_core.errors import ConfigError, EnvError, MissingDependencyError, OptionError
from gem_envs.remote.address import checked_url

__all__ = ["OpenEnv"]

_LARGEST_MESSAGE = 100 << 20
_NUMBERS = {"integer": int, "number": float}
_CALL = '{"tool_name": "NAME", "arguments": {...}}'


class OpenEnv(Env):
    """A session on an OpenEnv server, which lasts until `close`.

    An action the server cannot parse costs a turn, and the observation gives the reason. Any other
    server error fails the episode. The option `reset` contains parameters for the server's reset.
    """

    execution = "thread"
    deterministic = False  # the server's environment is unknown
    option_names = frozenset({"reset"})

    def __init__(
        self,
        url: str = "",
        action_field: str | None = None,
        observation_field: str | None = None,
        timeout: float = 300.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Create the client.

        `action_field` is the field of an action that takes the text, `observation_field` the field
        of an observation to show. `timeout` is the time limit of a reply in seconds. `headers` are
        sent with every connection, for example an Authorization header.
        """
        self.url, credentials = checked_url(url)
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
            raise ConfigError(f"timeout must be a positive number of seconds; got {timeout!r}")
        self.timeout, self.headers = float(timeout), dict(headers or {})
        if credentials is not None:
            pair = base64.b64encode(":".join(credentials).encode()).decode()
            self.headers["Authorization"] = f"Basic {pair}"
        self.action_field, self.observation_field = action_field, observation_field
        self._library = _library()
        self._open_connection = contextlib.ExitStack()
        self._connection: Any = None
        self._fields: dict[str, Mapping[str, Any]] | None = None
        self._tools: list[Mapping[str, Any]] | None = None

    @property
    def action_example(self) -> str:  # type: ignore[override]
        """An example of an action, known after the first reset."""
        if self._fields is None or self._main_field() is not None:
            return "action"
        return _CALL if self._tools is not None else json.dumps(dict.fromkeys(self._fields, "..."))

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        parameters = options.get("reset", {})
        if not isinstance(parameters, Mapping):
            raise OptionError(
                "the option `reset` must be a mapping of parameters for the server's reset; "
                f"got {parameters!r}"
            )
        self._connect()
        data = self._request({"type": "reset", "data": {"seed": self._seed, **parameters}})
        if data.get("done"):
            raise EnvError(
                f"the server at {self.url} ended the episode in its reset: {str(data)[:200]}"
            )
        return self._text(data), {"system": self._instruction(), **self._info(data)}

    def on_step(self, action: str) -> StepResult:
        fields = self._parse_action(action)
        if isinstance(fields, str):
            return fields, 0.0, False, False, {"action_failed": True}
        try:
            data = self._request({"type": "step", "data": fields})
        except _InvalidActionError as error:
            return str(error), 0.0, False, False, {"action_failed": True}
        reward = data.get("reward")
        if reward is not None and not isinstance(reward, (int, float)):
            raise EnvError(
                f"the server at {self.url} answered with the reward {reward!r}; expected a number"
            )
        done = bool(data.get("done"))
        return self._text(data), float(reward or 0.0), done, False, self._info(data)

    def on_close(self) -> None:
        self._connection = None
        self._open_connection.close()

    # Conversion between text and objects.

    def _parse_action(self, text: str) -> dict[str, Any] | str:
        """Return the object of an action, or a message about what is wrong with it."""
        fields = self._fields or {}
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if self._tools is not None:
            if isinstance(value, dict) and "tool_name" in value:
                return {
                    "type": "call_tool",
                    "tool_name": value["tool_name"],
                    "arguments": value.get("arguments") or {},
                }
            names = ", ".join(str(tool.get("name")) for tool in self._tools)
            return f"An action is a call of a tool: {_CALL}. The tools: {names}."
        if isinstance(value, dict) and value and set(value) <= set(fields):
            return value
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
        """Return the field that takes the text: `action_field`, or the only (required) field."""
        if self.action_field is not None:
            return self.action_field
        if self._fields is None or self._tools is not None:
            return None
        required = [name for name, field in self._fields.items() if "default" not in field]
        for names in (list(self._fields), required):
            if len(names) == 1 and self._fields[names[0]].get("type") in ("string", *_NUMBERS):
                return names[0]
        return None

    def _text(self, data: Mapping[str, Any]) -> str:
        observation = data.get("observation")
        if not isinstance(observation, Mapping):
            raise EnvError(
                f"the server at {self.url} answered without an observation: {str(data)[:200]}"
            )
        if self.observation_field is not None:
            if self.observation_field not in observation:
                raise EnvError(
                    f"the observations of {self.url} have no field {self.observation_field!r}, "
                    f"only {', '.join(observation)}; set `observation_field` to one of these"
                )
            return _as_text(observation[self.observation_field])
        shown = {
            k: v for k, v in observation.items() if k != "metadata" and v not in (None, "", [], {})
        }
        if len(shown) == 1 and isinstance(next(iter(shown.values())), str):
            return str(next(iter(shown.values())))
        lines = [f"{name}: {_as_text(value)}" for name, value in shown.items()]
        return "\n".join(lines) or "(nothing)"

    def _info(self, data: Mapping[str, Any]) -> dict[str, Any]:
        metadata = data.get("metadata") or {}
        info: dict[str, Any] = {"observation": dict(data["observation"])}
        if data.get("done") and isinstance(metadata.get("success"), bool):
            info["success"] = metadata["success"]
        return info

    def _instruction(self) -> str:
        """Return a system prompt that describes the actions."""
        if self._tools is not None:
            tools = "\n".join(
                f"- {t.get('name')}: {t.get('description')} {json.dumps(t.get('input_schema'))}"
                for t in self._tools
            )
            return (
                "You act by calling tools, one call for each of your messages, "
                f"written as {_CALL}. The tools:\n{tools}"
            )
        fields = "\n".join(
            f"- {k} ({f.get('type', 'any')}): {f.get('description', '')}"
            for k, f in (self._fields or {}).items()
        )
        main = self._main_field()
        if main is not None:
            description = (self._fields or {}).get(main, {}).get("description", "")
            return f"Each of your messages is one action, the {main}. {description}".rstrip()
        return f"Each of your messages is one action, a JSON object with these fields:\n{fields}"

    # The server.

    def _connect(self) -> None:
        if self._connection is not None and self._connection.state.name == "OPEN":
            return
        self.on_close()
        if self._fields is None:
            self._fields = self._schema()
        try:
            connection = self._library.connect(
                f"ws{self.url.removeprefix('http')}/ws",
                open_timeout=self.timeout,
                max_size=_LARGEST_MESSAGE,
                additional_headers=self.headers,
                proxy=None if self._is_local() else True,
            )
            self._connection = self._open_connection.enter_context(connection)
        except (OSError, self._exceptions.WebSocketException) as error:
            raise EnvError(
                f"cannot connect to {self.url}: {type(error).__name__}: {error}; "
                "is the server running?"
            ) from error
        if self._tools is None and (not self._fields or "tool_name" in self._fields):
            data = self._request({"type": "step", "data": {"type": "list_tools"}})
            self._tools = data["observation"].get("tools", [])

    def _is_local(self) -> bool:
        return urlsplit(self.url).hostname in ("127.0.0.1", "localhost", "::1")

    def _opener(self) -> urllib.request.OpenerDirector:
        no_proxy = [urllib.request.ProxyHandler({})] if self._is_local() else []
        return urllib.request.build_opener(_NoRedirect, *no_proxy)

    def _schema(self) -> dict[str, Mapping[str, Any]]:
        """Fetch the fields of an action, by name."""
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
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            raise EnvError(
                f"cannot read the action schema at {self.url}/schema "
                f"({type(error).__name__}: {error}); is this an OpenEnv server?"
            ) from error

    def _request(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a message and return the data of the reply."""
        if self._connection is None:
            raise EnvError(f"the connection to {self.url} is closed; call reset()")
        try:
            self._connection.send(json.dumps(message))
            reply = json.loads(self._connection.recv(timeout=self.timeout))
        except (OSError, ValueError, self._exceptions.WebSocketException) as error:
            self.on_close()  # the next request would receive a late reply to this one
            reason = f"{type(error).__name__}: {error or 'no answer in time'}"
            raise EnvError(f"the {message['type']} at {self.url} failed: {reason}") from error
        except BaseException:  # also KeyboardInterrupt
            self.on_close()
            raise
        data = reply.get("data") or {}
        if reply.get("type") != "error":
            return dict(data)
        text = str(data.get("message", "an error"))
        for problem in data.get("errors") or ():
            text += f"; {'.'.join(map(str, problem.get('loc', ())))}: {problem.get('msg')}"
        if data.get("code") == "VALIDATION_ERROR" and message["type"] == "step":
            raise _InvalidActionError(f"The action was not understood: {text}")
        raise EnvError(
            f"the server at {self.url} answered the {message['type']} with an error "
            f"({data.get('code')}): {text}"
        )

    @property
    def _exceptions(self) -> Any:
        import websockets.exceptions

        return websockets.exceptions


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follow no redirects: headers such as Authorization are only for the named server."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _InvalidActionError(EnvError):
    """Raised when the server cannot parse an action."""


def _as_text(value: object) -> str:
    """Return a value as text; for a tool's result, the text parts of its content."""
    parts = value.get("content") if isinstance(value, Mapping) else None
    parts = parts if isinstance(parts, list) else []
    if parts and all(isinstance(part, Mapping) and "text" in part for part in parts):
        return "\n".join(str(part["text"]) for part in parts)
    return value if isinstance(value, str) else json.dumps(value)


def _library() -> Any:
    try:
        import websockets.sync.client
    except ImportError as error:
        raise MissingDependencyError("an OpenEnv server", "openenv", str(error)) from error
    return websockets.sync.client
