"""Tool wrapper: adds tools to any environment.

A tool call is an ordinary turn of the episode, answered with the role `tool`. It does not step the
environment; every other action reaches the environment unchanged. All calls of an action run in
order, and the observation shows all results.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Literal

from gem_core.arguments import whole_number, whole_number_or_none
from gem_core.env.action_format import ActionFormat, suffix_info
from gem_core.env.base import Env
from gem_core.env.wrapper import Wrapper
from gem_core.errors import ConfigError
from gem_tools import make_tool
from gem_tools.arguments import finite_number, positive_number
from gem_tools.calls import Style, check_arguments, check_style, find_calls, instruction
from gem_tools.tool import Tool, ToolCall, ToolError, ToolResult, Toolset, as_schema

__all__ = ["SETTINGS", "ToolWrapper", "wrap_with"]

ToolLike = Any
"""A Tool, a Toolset, the name of one, or a (name, arguments) pair."""


class ToolWrapper(Wrapper):
    """A wrapper that lets a model call tools between its actions.

    Every step's `info` has `use_tool` and the counts `tool_uses`, `tool_successes` and
    `tool_errors`. A tool turn's also has `role` ("tool"), `parsed_action`, `tool_error` and
    `tool_calls`, a list with the name, error and details of each call.
    """

    def __init__(
        self,
        env: Env,
        tools: Sequence[ToolLike],
        *,
        style: Style = "tag",
        place: Literal["system", "observation"] = "system",
        max_uses: int | None = 10,
        refusals: int = 2,
        use_reward: float = 0.0,
        success_reward: float = 0.0,
        error_reward: float = 0.0,
        deadline: float | None = None,
        on_outage: Literal["failed", "tell"] = "failed",
        previous: bool = False,
    ) -> None:
        """Add tools to an environment.

        An episode runs `max_uses` calls. It answers `refusals` further calls with a message, and
        the next one truncates it. Every call is rewarded with `use_reward` plus `success_reward` or
        `error_reward`. `deadline` is the engine's time limit of a call in seconds, in addition to
        the tool's own. `on_outage` selects what a broken tool does: fail the episode ('failed') or
        tell the model ('tell'). `previous` adds the counts of the previous episode to the `info` of
        a reset, as `previous_tool_uses` and so on; transcripts then depend on earlier episodes.
        """
        super().__init__(env)
        check_style(style)
        if place not in ("system", "observation"):
            raise ConfigError(f"place must be 'system' or 'observation'; got {place!r}")
        if on_outage not in ("failed", "tell"):
            raise ConfigError(f"on_outage must be 'failed' or 'tell'; got {on_outage!r}")
        self.max_uses = whole_number_or_none("max_uses", max_uses, 0, "no limit")
        self.refusals = whole_number("refusals", refusals, 0)
        if isinstance(tools, (str, Tool, Toolset)) or not tools:
            raise ConfigError(f"tools must be a non-empty list of tools or names; got {tools!r}")
        self.sources = [_as_tool(tool) for tool in tools]
        self.style, self.place = style, place
        self.use_reward = finite_number("use_reward", use_reward)
        self.success_reward = finite_number("success_reward", success_reward)
        self.error_reward = finite_number("error_reward", error_reward)
        self.deadline = None if deadline is None else positive_number("deadline", deadline)
        self.on_outage, self.previous = on_outage, previous
        self.tools: dict[str, Tool] | None = None
        """The tools by name; None until the first reset if there is a `Toolset`."""
        self._versions: list[int] = []
        own = _by_name([tool for tool in self.sources if isinstance(tool, Tool)])
        if len(own) == len(self.sources):
            self.tools = own
        self._clear()

    def _clear(self) -> None:
        self.uses = self.successes = self.errors = self.refused = 0
        self.states: dict[str, Any] = {}

    def on_reset(self, options: Mapping[str, Any]) -> Any:
        counts = {f"previous_{name}": count for name, count in self._counts().items()}
        self._clear()
        for toolset in self._toolsets():
            yield self._offloaded(toolset.begin)
        tools = yield from self._discover()
        observation, info = yield self.env.reset(seed=self._seed, options=options)
        self._suffix = info.get("suffix", "")
        text = instruction(list(tools.values()), self.style, self.max_uses)
        schemas = [as_schema(tool) for tool in tools.values()]
        info = {**info, **(counts if self.previous else {}), "tools": schemas}
        if self.style == "native":
            # A request with the schemas needs only the first line, which has the budget.
            inner = info.get("function_calling") or {"tools": [], "instructions": {}}
            info["function_calling"] = {
                "tools": [*inner["tools"], *schemas],
                "instructions": {**inner["instructions"], text: text.partition("\n")[0]},
            }
        if self.place == "observation":
            return f"{observation}\n\n{text}", info
        system = f"{info['system']}\n\n{text}" if info.get("system") else text
        return observation, {**info, "system": system}

    def on_step(self, action: str) -> Any:
        tools = yield from self._discover()
        calls = self._for_tools(find_calls(action, tools, self.style), tools, action)
        if not calls:
            observation, reward, terminated, truncated, info = yield self.env.step(action)
            self._suffix = info.get("suffix", "")
            info = {**info, "use_tool": False, **self._counts()}
            return observation, reward, terminated, truncated, info
        reward, texts, details, failed = 0.0, [], [], False
        over = False
        for call in calls:
            if self.max_uses is not None and self.uses >= self.max_uses:
                over = True
                break
            result = yield from self._run(call, tools)
            self.uses += 1
            if result.error:
                self.errors += 1
            else:
                self.successes += 1
            failed = failed or result.error
            reward += self.use_reward + (self.error_reward if result.error else self.success_reward)
            head = f"[{call.name or 'call'}]\n" if len(calls) > 1 else ""
            texts.append(head + result.text)
            facts = {"error": result.error, "outage": result.outage, **result.info}
            details.append({"name": call.name, "id": call.id, **facts})
        truncated = False
        if over:
            self.refused += 1
            failed, reward = True, reward + self.error_reward
            truncated = self.refused > self.refusals
            texts.append(
                f"No tool calls are left: all {self.max_uses} were made, and this was not run. "
                "Answer without tools."
            )
            if truncated:
                texts.append("The episode ends here.")
        elif self.max_uses is not None and self.uses >= self.max_uses:
            texts.append(
                f"That was the last of {self.max_uses} tool calls. Answer without tools now."
            )
        info = {
            "role": "tool",
            "use_tool": True,
            "parsed_action": "\n".join(_main(call, tools) for call in calls),
            "tool_error": failed,
            "tool_calls": details,
            **suffix_info(self._suffix),
            **self._counts(),
        }
        if truncated:
            info["success"] = False
        return "\n".join(texts), reward, False, truncated, info

    def calls_tools(self, text: str) -> bool:
        """Whether a text contains a tool call."""
        return bool(find_calls(text, self.tools or {}, self.style))

    def on_close(self) -> Any:
        for toolset in self._toolsets():
            yield self._offloaded(toolset.close)
        return (yield self.env.close())

    def spawn(self) -> Env:
        _, kwargs = self._made_with
        settings = {name: value for name, value in kwargs.items() if name not in ("env", "tools")}
        sources = [tool.twin() if isinstance(tool, Toolset) else tool for tool in self.sources]
        return ToolWrapper(self.env.spawn(), sources, **settings)

    @property
    def is_async(self) -> bool:
        return self._offload is not None or self.env.is_async

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        """Whether the environment and all tools are deterministic."""
        if not self.env.deterministic or self.tools is None:
            return False
        return all(tool.deterministic for tool in self.tools.values())

    def with_tool(self, tool: Tool | Toolset, settings: Mapping[str, Any]) -> ToolWrapper:
        """Return a wrapper with one more tool, to replace this one."""
        _, kwargs = self._made_with
        for name, value in settings.items():
            if name in kwargs and kwargs[name] != value:
                raise ConfigError(
                    "tools of one environment share one budget and one set of rewards; "
                    f"got {name}={kwargs[name]!r} and {name}={value!r}: set {name} once"
                )
        previous = {name: value for name, value in kwargs.items() if name not in ("env", "tools")}
        return ToolWrapper(self.env, [*self.sources, tool], **{**previous, **settings})

    def _discover(self) -> Generator[Any, Any, dict[str, Tool]]:
        versions = [toolset.version for toolset in self._toolsets()]
        if self.tools is None or versions != self._versions:
            tools: list[Tool] = []
            for source in self.sources:
                if isinstance(source, Toolset):
                    tools += yield self._offloaded(source.tools)
                else:
                    tools.append(source)
            self.tools, self._versions = _by_name(tools), versions
        return self.tools

    def _toolsets(self) -> list[Toolset]:
        return [tool for tool in self.sources if isinstance(tool, Toolset)]

    def _offloaded(self, function: Callable[[], Any]) -> Any:
        return function() if self._offload is None else self._offload(function)

    def _for_tools(
        self, calls: list[ToolCall], tools: Mapping[str, Tool], action: str
    ) -> list[ToolCall]:
        """Drop calls of unknown tools if the environment's action format can parse the text."""
        known = any(call.name in tools for call in calls)
        if calls and not known and _format_parses(self.env, action):
            return []
        return calls

    def _run(self, call: ToolCall, tools: Mapping[str, Tool]) -> Generator[Any, Any, ToolResult]:
        tool = tools.get(call.name)
        problem = call.problem
        if not problem and tool is None:
            problem = f"There is no tool {call.name!r}."
        if not problem and tool is not None:
            problem = check_arguments(tool, call.arguments)
        if problem or tool is None:
            return ToolResult(f"{problem} The tools are: {', '.join(tools)}.", error=True)
        try:
            result = yield self._start(tool, call)
        except ToolError as error:
            if self.on_outage == "failed":
                raise
            result = ToolResult(f"The tool is out of order: {error}", error=True, outage=True)
        except (TimeoutError, asyncio.TimeoutError):
            result = ToolResult(f"{tool.name} was given up after {self.deadline:g} s.", error=True)
        if not isinstance(result, ToolResult):
            raise ToolError(
                f"the tool {tool.name!r} returned {type(result).__name__}; "
                "it must return a ToolResult"
            )
        if result.outage and self.on_outage == "failed":
            raise ToolError(f"the tool {tool.name!r} failed: {result.text}")
        if result.state is not None:
            self.states[tool.name] = result.state
        return result

    def _start(self, tool: Tool, call: ToolCall) -> Any:
        state = self.states.get(tool.name)
        blocking = tool.blocking and not inspect.iscoroutinefunction(tool.call)
        if self._offload is not None and blocking:
            result: Any = self._offload(tool.call, call.arguments, state)
        else:
            result = tool.call(call.arguments, state)
        if self.deadline is not None and inspect.isawaitable(result):
            return asyncio.wait_for(result, self.deadline)
        return result

    def _counts(self) -> dict[str, int]:
        return {
            "tool_uses": self.uses,
            "tool_successes": self.successes,
            "tool_errors": self.errors,
        }


SETTINGS = tuple(
    p.name
    for p in inspect.signature(ToolWrapper.__init__).parameters.values()
    if p.kind is p.KEYWORD_ONLY
)
"""The settings that all tools of a wrapper share."""


def wrap_with(env: Env, tool: str, **arguments: Any) -> ToolWrapper:
    """Add a registered tool to an environment, as in `wrappers: [react, python, search]`.

    Consecutive tools share one wrapper and its budget. Keyword arguments of `ToolWrapper` go to the
    wrapper, all others to the tool.
    """
    settings = {name: value for name, value in arguments.items() if name in SETTINGS}
    kwargs = {name: value for name, value in arguments.items() if name not in SETTINGS}
    added = make_tool(tool, **kwargs)
    if isinstance(env, ToolWrapper):
        return env.with_tool(added, settings)
    return ToolWrapper(env, [added], **settings)


def _as_tool(tool: ToolLike) -> Tool | Toolset:
    if isinstance(tool, (Tool, Toolset)):
        return tool
    if isinstance(tool, str):
        return make_tool(tool)
    if isinstance(tool, (tuple, list)) and len(tool) == 2 and isinstance(tool[0], str):
        return make_tool(tool[0], **dict(tool[1] or {}))
    raise ConfigError(
        f"expected a Tool, a Toolset, a name or a (name, arguments) pair; got {tool!r}"
    )


def _by_name(tools: Sequence[Tool]) -> dict[str, Tool]:
    by_name: dict[str, Tool] = {}
    for tool in tools:
        _check_tool(tool)
        if tool.name in by_name:
            raise ConfigError(f"two tools have the name {tool.name!r}; rename one of them")
        by_name[tool.name] = tool
    return by_name


def _check_tool(tool: Tool) -> None:
    if not isinstance(tool.name, str) or not tool.name:
        raise ConfigError(
            f"the tool {type(tool).__name__} has the name {tool.name!r}; "
            "set `name` to the name by which the model calls it"
        )
    arguments = tool.parameters.get("properties") or {}
    if arguments and tool.main_argument and tool.main_argument not in arguments:
        raise ConfigError(
            f"the tool {tool.name!r} has main_argument={tool.main_argument!r}, but its parameters "
            f"have the properties: {', '.join(arguments)}; use one of them or add it"
        )


def _format_parses(env: Env, action: str) -> bool:
    while isinstance(env, Wrapper):
        if isinstance(env, ActionFormat):
            return env.parse(action) is not None
        env = env.env
    return False


def _main(call: ToolCall, tools: Mapping[str, Tool]) -> str:
    tool = tools.get(call.name)
    if tool is not None and tool.main_argument in call.arguments:
        return str(call.arguments[tool.main_argument])
    return f"{call.name}({', '.join(f'{k}={v!r}' for k, v in call.arguments.items())})"
