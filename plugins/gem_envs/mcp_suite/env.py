"""McpTask: a task on MCP servers; the reward depends on the final state of their data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, cast

from gem_core.arguments import whole_number
from gem_core.env.base import Env, ResetResult, StepResult
from gem_core.errors import ConfigError, MissingDependencyError, OptionError
from gem_envs.mcp_suite.families import family_named, templates_of
from gem_envs.mcp_suite.ids import SUITES
from gem_envs.mcp_suite.pool import Slot, acquire, release
from gem_envs.mcp_suite.task import LEVELS, SuiteTask
from gem_tools.calls import Style, check_arguments, check_style, find_calls, instruction, write_call
from gem_tools.tool import Tool, ToolCall, ToolError, ToolResult, as_schema

__all__ = ["McpTask"]

_MOST_CALLS = 16
"""Calls in one message; the longest solution has 12."""
_SHOWN = 6000
_NEEDS = ("mcp", "mcp_server_git", "mcp_server_time", "psycopg")


class McpTask(Env):
    """A task on MCP servers; the reward is 1 if the final data are as requested, else 0.

    An action calls tools, in the format of `style`. An action without a call ends the episode, and
    so does the last turn; the data are then checked. The `info` of a step has the same
    keys as that of `ToolWrapper`: `tool_uses`, `tool_successes` and `tool_errors`, and after calls
    `tool_error` and `tool_calls`. The option `template` selects the kind of task.
    """

    execution = "thread"
    deterministic = False  # a tool may read the clock
    option_names = frozenset({"template"})
    action_example = '<tool_call>{"name": "get_current_time", "arguments": {}}</tool_call>'

    def __init__(
        self,
        suite: str,
        level: str | None = None,
        template: str | None = None,
        style: Style = "json",
        max_turns: int = 20,
    ) -> None:
        """Create the environment.

        `suite` is the kind of server. `template` is the kind of task; None draws one in every
        episode, of this `level` (easy, medium or hard) if it is set. A `template` of another level
        raises ConfigError. `style` is the format of calls, as in `gem_tools.calls`.
        """
        if suite not in SUITES:
            raise ConfigError(f"suite must be one of {', '.join(SUITES)}; got {suite!r}")
        if level is not None and level not in LEVELS:
            raise ConfigError(f"level must be one of {', '.join(LEVELS)}; got {level!r}")
        check_style(style)
        missing = [name for name in _NEEDS if find_spec(name) is None]
        if missing:
            raise MissingDependencyError(
                "the MCP suite", "mcp-suite", f"No module named {missing[0]!r}"
            )
        self.family, self.templates = family_named(suite), templates_of(suite)
        self.names = [name for name, t in self.templates.items() if level in (None, t.level)]
        self.template = template if template is None else self._checked(template, ConfigError)
        if template is not None and template not in self.names:
            raise ConfigError(
                f"the template {template} is {self.templates[template].level}, but level is "
                f"{level!r}; use the id mcp:{suite}-v0 without level"
            )
        self.style: Style = style
        self.max_turns = whole_number("max_turns", max_turns, 1)
        self.slot: Slot | None = None

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        name = options.get("template")
        if name is None:
            name = self.template or self.rng.choice(self.names)
        else:
            name = self._checked(name, OptionError)
        self.task: SuiteTask = self.templates[name].draw(self.rng)
        if self.slot is not None and self.slot.busy:
            self.on_close()
        self.slot = self.slot or acquire(self.family)
        self.tools: dict[str, Tool] = self.slot.begin(self.task.setup)
        self.uses = self.errors = 0
        observation = (
            f"{self.task.instruction}\nWork with the tools; nobody answers questions. "
            "A message without a tool call ends the task. "
            f"You have {self.max_turns} messages."
        )
        info = {
            "template": name,
            "level": self.templates[name].level,
            "system": instruction(list(self.tools.values()), self.style),
            "tools": [as_schema(tool) for tool in self.tools.values()],
        }
        return observation, info

    def on_step(self, action: str) -> StepResult:
        calls = find_calls(action, self.tools, self.style)
        if not calls:
            return self._score("", truncated=False, info={"use_tool": False})
        texts, details = [], []
        for call in calls[:_MOST_CALLS]:
            head = f"[{call.name or 'call'}]\n" if len(calls) > 1 else ""
            result = self._use(call)
            self.uses += 1
            self.errors += result.error
            texts.append(head + result.text)
            facts = {"error": result.error, "outage": result.outage, **result.info}
            details.append({"name": call.name, "id": call.id, **facts})
        if len(calls) > _MOST_CALLS:
            texts.append(f"Only the first {_MOST_CALLS} of {len(calls)} calls were made.")
        observation = "\n".join(texts)
        info = {
            "role": "tool",
            "use_tool": True,
            "tool_error": any(detail["error"] for detail in details),
            "tool_calls": details,
        }
        if self.turn + 1 >= self.max_turns:
            last = f"{observation}\nThat was the last of {self.max_turns} messages.\n"
            return self._score(last, truncated=True, info=info)
        return observation, 0.0, False, False, {**info, **self._counts()}

    def on_close(self) -> None:
        slot, self.slot = self.slot, None
        if slot is not None:
            release(slot)

    def sample_action(self) -> str:
        name = self.action_rng.choice([*self.tools, ""])
        return write_call(ToolCall(name, {}), self.style) if name else "done"

    def expert(self) -> Iterator[str]:
        """Make the calls of the task's reference solution, one per message."""
        for name, arguments in self.task.solution:
            yield write_call(ToolCall(name, arguments), self.style)
        yield "The task is done."

    def _use(self, call: ToolCall) -> ToolResult:
        tool = self.tools.get(call.name)
        problem = call.problem or ("" if tool else f"There is no tool {call.name!r}.")
        if tool is not None and not problem:
            problem = check_arguments(tool, call.arguments)
        if tool is None or problem:
            return ToolResult(problem, error=True)
        slot = self.slot
        if slot is None:  # `close` came from another thread, after a deadline
            return ToolResult("The episode has ended.", error=True)
        was_busy, slot.busy = slot.busy, True
        result = cast(ToolResult, tool.call(call.arguments))
        slot.busy = was_busy or result.info.get("problem") == "deadline"
        if result.outage:
            raise ToolError(f"the tool {tool.name!r} failed: {result.text}")
        text = result.text
        if len(text) > _SHOWN:
            text = f"{text[:_SHOWN]}\n(... {len(text) - _SHOWN} characters left out)"
        return replace(result, text=text)

    def _score(self, output: str, truncated: bool, info: dict[str, Any]) -> StepResult:
        assert self.slot is not None
        solved = self.task.check(self.family.state(self.slot))
        self.on_close()
        word = "solved" if solved else "not solved"
        info = {**info, **self._counts(), "success": solved}
        return f"{output}The task is {word}.", float(solved), not truncated, truncated, info

    def _counts(self) -> dict[str, int]:
        return {
            "tool_uses": self.uses,
            "tool_successes": self.uses - self.errors,
            "tool_errors": self.errors,
        }

    def _checked(self, name: object, error: type[ConfigError | OptionError]) -> str:
        if name in self.templates:
            return str(name)
        raise error(f"template must be one of {', '.join(self.templates)}; got {name!r}")
