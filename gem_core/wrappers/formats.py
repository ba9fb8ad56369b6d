r"""Action formats: how a model writes its action, and what of it the environment takes.

A format wrapper tells the model how to answer and parses what it wrote; the sampled ids stay as they are. A stack holds one
format; naming one in `make(..., wrappers=["react"])` takes the place of the environment's own.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, Literal, cast

from gem_core.bridge import after
from gem_core.env import Env, ResetResult, Shortcut, StepResult
from gem_core.envs.game import FORMAT_ERROR, whole_number
from gem_core.errors import ConfigError
from gem_core.wrapper import Wrapper

__all__ = ["ActionFormat", "Boxed", "Code", "React", "ToolCall", "format_of", "last_boxed"]

_BRACES = re.compile(r"\\boxed\{|[{}]")


def last_boxed(text: str) -> str | None:
    r"""The content of the last complete `\boxed{...}`, braces inside it balanced; None where there is none."""
    _, box, tail = text.rpartition("\\boxed{")
    if not box:
        return None
    content, close, _ = tail.partition("}")
    if close and "{" not in content:
        return content
    # Braces in it, or a box that is never closed: one walk over all braces, so that no text takes more than linear time.
    opened: list[int] = []
    found = (0, 0)
    for brace in _BRACES.finditer(text):
        if brace[0] != "}":
            opened.append(brace.end() if brace[0] != "{" else -1)
        elif opened and (begin := opened.pop()) > found[0]:
            found = (begin, brace.start())
    return text[slice(*found)] if found[0] else None


class ActionFormat(Wrapper):
    """The base of the formats. Subclasses say how to write an action and how to read one."""

    def __init__(
        self,
        env: Env,
        place: Literal["system", "observation"] = "system",
        on_error: Literal["end", "again", "pass"] = "end",
        error_reward: float = FORMAT_ERROR,
        max_errors: int = 3,
    ) -> None:
        """`place`: instructions as a system prompt, or behind the first observation. `on_error`: an answer without an action
        ends the episode, costs only the turn, or goes to the environment as it is. An environment does not hear of the turns
        that are lost in this way, so that its own limit never comes: the episode ends with the last of `max_errors` of them."""
        super().__init__(env)
        if place not in ("system", "observation"):
            raise ConfigError(f"place must be 'system' or 'observation'; given: {place!r}")
        if on_error not in ("end", "again", "pass"):
            raise ConfigError(f"on_error must be 'end', 'again' or 'pass'; given: {on_error!r}")
        self.place, self.on_error, self.error_reward = place, on_error, float(error_reward)
        self.max_errors = whole_number("max_errors", max_errors, 1)

    def instruction(self) -> str:
        """What the model is told about the format."""
        raise NotImplementedError

    def parse(self, text: str) -> str | None:
        """The action inside a text, None where there is none."""
        raise NotImplementedError

    def write(self, action: str) -> str:
        """An action in this format, as a model would write it."""
        raise NotImplementedError

    def on_reset(self, options: Mapping[str, Any]) -> Any:
        result = self.env.reset(seed=self._seed, options=options)
        return self._instructed(result) if type(result) is tuple else after(result, self._instructed)

    def _instructed(self, result: ResetResult) -> ResetResult:
        return _with(self.instruction(), self.place, result)

    def step(self, action: str) -> StepResult:
        """As every wrapper's; the short way where there is one."""
        way = self.shortcut()
        return super().step(action) if way is self or not isinstance(action, str) else way.step(action)

    def shortcut(self) -> Shortcut:
        straight = _is_straight(type(self), type(self.env))  # type: ignore[arg-type]  # mypy asks their instances for a hash
        return _Straight(self) if straight else self

    def on_step(self, action: str) -> Any:
        parsed = self.parse(action)
        if parsed is None:
            if self.on_error != "pass":
                said = f"No action was found in the answer. {self.instruction()}"
                ends = self.on_error == "end" or 1 + sum(self.parse(a) is None for a in self._actions) >= self.max_errors
                info = {"success": False, "format_error": True} if ends else {"format_error": True}
                return said, self.error_reward, ends, False, info
            parsed = action

        observation, reward, terminated, truncated, info = yield self.env.step(parsed)
        info.setdefault("parsed_action", parsed)
        return observation, reward, terminated, truncated, info

    def sample_action(self) -> str:
        return self.write(self.env.sample_action())


def _with(instruction: str, place: str, result: ResetResult) -> ResetResult:
    """A first observation with what is said about the format."""
    observation, info = result
    if place == "observation":
        return f"{observation}\n{instruction}", info
    return observation, {**info, "system": f"{info['system']}\n\n{instruction}" if info.get("system") else instruction}


class _Straight:
    """The way through an action format straight into a plain environment: `reset` and `step` of the two in one.

    All games are stepped in this way. A wrapper hands on what it does not define, for which Python takes longer over everything
    that is looked up in it: so what a step needs is looked up once, and `own`, its attributes, is where its account is kept.
    """

    __slots__ = ("env", "format", "instruction", "own", "parse")

    def __init__(self, format: ActionFormat) -> None:
        self.format, self.env, self.own = format, format.env, vars(format)
        self.parse, self.instruction = format.parse, format.instruction

    def reset(self, *, seed: int, options: Mapping[str, Any] | None) -> ResetResult:
        if type(seed) is not int or seed < 0 or options:  # to be checked first
            return self.format.reset(seed=seed, options=options)
        own, instruction = self.own, self.instruction
        own["_phase"] = "new"
        own["_seed"] = seed
        own["_options"] = {}
        own["_actions"] = []
        own["_rng"] = own["_action_rng"] = None
        result = self.env.reset(seed=seed)
        if type(result) is not tuple:
            return cast(ResetResult, after(after(result, self.format._instructed), self.format._began))
        result = _with(instruction(), self.format.place, result)
        own["_phase"] = "running"
        own["_observation"] = result[0]
        return result

    def step(self, action: str) -> StepResult:
        own, env, parse = self.own, self.env, self.parse
        if (
            own["_phase"] != "running"
            or env._phase != "running"
            or env._offload is not None
            or type(parsed := parse(action)) is not str
        ):
            return Wrapper.step(self.format, action)  # which says why not, or knows what to do
        result: Any = env.on_step(parsed)
        if type(result) is not tuple:
            return cast(StepResult, after(env._will_take(parsed, result), partial(self._noted, action, parsed)))
        try:
            observation, reward, terminated, truncated, info = result
        except ValueError:
            raise env._nonsense(result) from None
        if not (  # as in `_took`, and then its account for both: calling it twice would take a tenth of the step
            type(observation) is str
            and type(reward) is float
            and reward - reward == 0.0
            and (terminated is False or terminated is True)
            and (truncated is False or truncated is True)
            and type(info) is dict
        ):
            return self._noted(action, parsed, env._took(parsed, result))
        env._actions.append(parsed)
        own["_actions"].append(action)
        env._observation = own["_observation"] = observation
        if "parsed_action" not in info:
            info["parsed_action"] = parsed
        if terminated or truncated:
            env._phase = own["_phase"] = "ended"
        return result

    def _noted(self, action: str, parsed: str, result: StepResult) -> StepResult:
        result[4].setdefault("parsed_action", parsed)
        return self.format._took(action, result)


@lru_cache
def _is_straight(outer: type[ActionFormat], inner: type[Env]) -> bool:
    """Whether neither has a way of its own, which the straight one would pass by."""
    return (
        inner.step is Env.step
        and inner.reset is Env.reset
        and not issubclass(inner, Wrapper)
        and outer.step is ActionFormat.step
        and outer.reset is ActionFormat.reset
        and outer.on_step is ActionFormat.on_step
        and outer.on_reset is ActionFormat.on_reset
    )


class Boxed(ActionFormat):
    r"""The action stands in `\boxed{}`; the last complete box counts."""

    def instruction(self) -> str:
        return f"Give your answer as \\boxed{{{self.env.action_example}}}."

    parse = staticmethod(last_boxed)

    def write(self, action: str) -> str:
        return f"\\boxed{{{action}}}"


class React(ActionFormat):
    """A thought, then an action on a line of its own; the last action counts."""

    _action = re.compile(r"^[ \t]*Action[ \t]*:(.*)$", re.MULTILINE | re.IGNORECASE)

    def instruction(self) -> str:
        form = f"Thought: your reasoning\nAction: {self.env.action_example}"
        return f"Answer with your reasoning and one action, in this form:\n{form}"

    def parse(self, text: str) -> str | None:
        found = [a for a in map(str.strip, self._action.findall(text)) if a]
        return found[-1] if found else None

    def write(self, action: str) -> str:
        return f"Thought: I try this.\nAction: {action}"


class ToolCall(ActionFormat):
    """A JSON call of the function `act` in `<tool_call>` tags, as models with function calling write it; the last one counts."""

    def instruction(self) -> str:
        return (
            "You act by calling the function act(action: str). Write the call as\n"
            f"<tool_call>\n{self._json(self.env.action_example)}\n</tool_call>"
        )

    def parse(self, text: str) -> str | None:
        end = text.rfind("</tool_call>")
        while end >= 0:  # from the last one back, each part of the text looked at once
            start = text.rfind("<tool_call>", 0, end)
            if start < 0:
                return None
            try:
                call = json.loads(text[start + len("<tool_call>") : end])
            except (ValueError, RecursionError):
                call = None
            arguments = call.get("arguments") if isinstance(call, dict) and call.get("name") == "act" else None
            if isinstance(arguments, dict) and "action" in arguments:
                return str(arguments["action"])
            end = text.rfind("</tool_call>", 0, start)
        return None

    def write(self, action: str) -> str:
        return f"<tool_call>\n{self._json(action)}\n</tool_call>"

    @staticmethod
    def _json(action: str) -> str:
        return json.dumps({"name": "act", "arguments": {"action": action}}, ensure_ascii=False)


class Code(ActionFormat):
    """The action is the last fenced code block; a block that is only `act("...")` stands for the text inside."""

    _block = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)
    _act = re.compile(r"""\s*act\(\s*("[^"\\\n]*(?:\\.[^"\\\n]*)*"|'[^'\\\n]*(?:\\.[^'\\\n]*)*'|[+-]?[\d.]+)\s*\)\s*""")

    def instruction(self) -> str:
        return f"Act by writing one block of Python code, in this form:\n```python\nact({self.env.action_example!r})\n```"

    def parse(self, text: str) -> str | None:
        blocks = self._block.findall(text)
        if not blocks:
            return None
        body: str = blocks[-1].strip("\n")
        act = self._act.fullmatch(body)
        if act is None:
            return body
        try:
            return str(ast.literal_eval(act[1]))  # a string or a number: Python's parser can crash on what a model may write
        except (SyntaxError, ValueError):
            return body

    def write(self, action: str) -> str:
        return f"```python\nact({action!r})\n```"


def format_of(env: Env) -> ActionFormat | None:
    """The action format in a stack of wrappers, None where there is none."""
    while isinstance(env, Wrapper):
        if isinstance(env, ActionFormat):
            return env
        env = env.env
    return None
