"""Tool wrapper: any tools around any environment. A call is an ordinary turn of the episode, answered with role `tool`.

The environment is not stepped by a tool call and does not see it; every other action goes through to it unchanged. All
calls of one action are run, in the order they were written, and all their results are shown.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Literal, cast

from gem_core.arguments import whole_number, whole_number_or_none
from gem_core.env.action_format import ActionFormat
from gem_core.env.base import Env
from gem_core.env.wrapper import Wrapper
from gem_core.errors import ConfigError
from gem_tools import make_tool
from gem_tools.calls import Style, check_arguments, find_calls, instruction
from gem_tools.tool import Tool, ToolCall, ToolError, ToolResult, Toolset, as_schema

__all__ = ["ToolWrapper", "wrap_with"]

ToolLike = Any
"""A Tool, a Toolset, the name of one, or a (name, arguments) pair."""


class ToolWrapper(Wrapper):
    """Lets a model call tools between its actions.

    Keys of `info` in every step: `use_tool`, and `tool_uses`, `tool_successes`, `tool_errors` so far. In a tool turn also
    `role` ("tool"), `parsed_action`, `tool_error`, and `tool_calls`, a list with the name, error and details of each call.
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
    ) -> None:
        """`max_uses` calls are run in an episode; `refusals` more are answered with a message, the next one truncates it.
        Rewards are per call: for any, and on top for one that went well, or did not. `deadline`: seconds an engine waits for
        one call, beyond the tool's own. `on_outage`: a broken tool fails the episode ('failed') or tells the model ('tell')."""
        super().__init__(env)
        if style not in ("tag", "json", "native"):
            raise ConfigError(f"style must be 'tag', 'json' or 'native'; given: {style!r}")
        if place not in ("system", "observation"):
            raise ConfigError(f"place must be 'system' or 'observation'; given: {place!r}")
        if on_outage not in ("failed", "tell"):
            raise ConfigError(f"on_outage must be 'failed' or 'tell'; given: {on_outage!r}")
        self.max_uses = whole_number_or_none("max_uses", max_uses, 0, "no limit")
        self.refusals = whole_number("refusals", refusals, 0)
        if isinstance(tools, (str, Tool, Toolset)) or not tools:
            raise ConfigError(
                f"tools must be a list of at least one tool or name of one; given: {tools!r}"
            )
        self.given = [_made(tool) for tool in tools]
        self.style, self.place = style, place
        self.use_reward, self.success_reward, self.error_reward = (
            float(use_reward),
            float(success_reward),
            float(error_reward),
        )
        self.deadline, self.on_outage = deadline, on_outage
        self.tools: dict[str, Tool] | None = None
        """The tools by name, once they are known: those of a `Toolset` are asked for at the first reset."""
        if all(isinstance(tool, Tool) for tool in self.given):
            self.tools = _by_name(cast("list[Tool]", self.given))
        self._clear()

    def _clear(self) -> None:
        self.uses = self.successes = self.errors = self.refused = 0
        self.states: dict[str, Any] = {}

    def on_reset(self, options: Mapping[str, Any]) -> Any:
        self._clear()
        for toolset in self._toolsets():
            yield self._call_elsewhere(toolset.begin)
        tools = yield from self._discovered()
        observation, info = yield self.env.reset(seed=self._seed, options=options)
        told = instruction(list(tools.values()), self.style, self.max_uses)
        info = {**info, "tools": [as_schema(tool) for tool in tools.values()]}
        if self.place == "observation":
            return f"{observation}\n\n{told}", info
        return observation, {
            **info,
            "system": f"{info['system']}\n\n{told}" if info.get("system") else told,
        }

    def on_step(self, action: str) -> Any:
        tools = yield from self._discovered()
        calls = self._for_tools(find_calls(action, tools, self.style), tools, action)
        if not calls:
            observation, reward, terminated, truncated, info = yield self.env.step(action)
            return (
                observation,
                reward,
                terminated,
                truncated,
                {**info, "use_tool": False, **self._counts()},
            )
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
            texts.append(
                f"[{call.name or 'call'}]\n{result.text}" if len(calls) > 1 else result.text
            )
            details.append(
                {
                    "name": call.name,
                    "id": call.id,
                    "error": result.error,
                    "outage": result.outage,
                    **result.info,
                }
            )
        truncated = False
        if over:
            self.refused += 1
            failed, reward = True, reward + self.error_reward
            truncated = self.refused > self.refusals
            texts.append(
                f"No tool calls are left: all {self.max_uses} were made, and this was not run. Answer without tools."
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
            yield self._call_elsewhere(toolset.close)
        return (yield self.env.close())

    def spawn(self) -> Env:
        _, kwargs = self._made_with
        settings = {name: value for name, value in kwargs.items() if name not in ("env", "tools")}
        given = [tool.twin() if isinstance(tool, Toolset) else tool for tool in self.given]
        return ToolWrapper(self.env.spawn(), given, **settings)

    @property
    def is_async(self) -> bool:
        return self._offload is not None or self.env.is_async

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        """Whether the environment and all tools are."""
        return (
            bool(self.env.deterministic)
            and self.tools is not None
            and all(t.deterministic for t in self.tools.values())
        )

    def with_tool(self, tool: Tool | Toolset, settings: Mapping[str, Any]) -> ToolWrapper:
        """One wrapper for these tools and another one, in place of this one."""
        _, kwargs = self._made_with
        for name, value in settings.items():
            if name in kwargs and kwargs[name] != value:
                raise ConfigError(
                    f"two tools around one environment ask for {name}={kwargs[name]!r} and {name}={value!r}; "
                    "they share one budget and one set of rewards, so say it once"
                )
        kept = {name: value for name, value in kwargs.items() if name not in ("env", "tools")}
        return ToolWrapper(self.env, [*self.given, tool], **{**kept, **settings})

    def _discovered(self) -> Generator[Any, Any, dict[str, Tool]]:
        if self.tools is None:
            found: list[Tool] = []
            for tool in self.given:
                if isinstance(tool, Toolset):
                    found += yield self._call_elsewhere(tool.tools)
                else:
                    found.append(tool)
            self.tools = _by_name(found)
        return self.tools

    def _toolsets(self) -> list[Toolset]:
        return [tool for tool in self.given if isinstance(tool, Toolset)]

    def _call_elsewhere(self, function: Callable[[], Any]) -> Any:
        return function() if self._offload is None else self._offload(function)

    def _for_tools(
        self, calls: list[ToolCall], tools: Mapping[str, Tool], action: str
    ) -> list[ToolCall]:
        """Leaves calls to the environment where its own action format reads the text and no tool is meant."""
        if (
            calls
            and not any(call.name in tools for call in calls)
            and _format_reads(self.env, action)
        ):
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
                f"the tool {tool.name!r} returned {type(result).__name__}; it must return a ToolResult"
            )
        if result.outage and self.on_outage == "failed":
            raise ToolError(f"the tool {tool.name!r} is out of order: {result.text}")
        if result.state is not None:
            self.states[tool.name] = result.state
        return result

    def _start(self, tool: Tool, call: ToolCall) -> Any:
        state = self.states.get(tool.name)
        if (
            self._offload is not None
            and tool.blocking
            and not inspect.iscoroutinefunction(tool.call)
        ):
            started: Any = self._offload(tool.call, call.arguments, state)
        else:
            started = tool.call(call.arguments, state)
        if self.deadline is not None and inspect.isawaitable(started):
            return asyncio.wait_for(started, self.deadline)
        return started

    def _counts(self) -> dict[str, int]:
        return {
            "tool_uses": self.uses,
            "tool_successes": self.successes,
            "tool_errors": self.errors,
        }


_SETTINGS = frozenset(
    p.name
    for p in inspect.signature(ToolWrapper.__init__).parameters.values()
    if p.kind is p.KEYWORD_ONLY
)


def wrap_with(env: Env, tool: str, **arguments: Any) -> ToolWrapper:
    """Puts a registered tool around an environment: how `wrappers: [react, python, search]` works. Tools that follow each
    other share one wrapper, so one budget. Arguments of `ToolWrapper` go there, all others to the tool."""
    settings = {name: value for name, value in arguments.items() if name in _SETTINGS}
    made = make_tool(
        tool, **{name: value for name, value in arguments.items() if name not in _SETTINGS}
    )
    if isinstance(env, ToolWrapper):
        return env.with_tool(made, settings)
    return ToolWrapper(env, [made], **settings)


def _made(tool: ToolLike) -> Tool | Toolset:
    if isinstance(tool, (Tool, Toolset)):
        return tool
    if isinstance(tool, str):
        return make_tool(tool)
    if isinstance(tool, (tuple, list)) and len(tool) == 2 and isinstance(tool[0], str):
        return make_tool(tool[0], **dict(tool[1] or {}))
    raise ConfigError(
        f"{tool!r} is no tool; give a Tool, a Toolset, a name, or a (name, arguments) pair"
    )


def _by_name(tools: Sequence[Tool]) -> dict[str, Tool]:
    found: dict[str, Tool] = {}
    for tool in tools:
        if tool.name in found:
            raise ConfigError(f"two tools are called {tool.name!r}; give one of them another name")
        found[tool.name] = tool
    return found


def _format_reads(env: Env, action: str) -> bool:
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
