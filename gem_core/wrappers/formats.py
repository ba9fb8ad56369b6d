r"""Action formats: how a model writes its action, and what of it the environment takes.

A format wrapper tells the model how to answer and parses what it wrote; the sampled ids stay as they are. A stack holds one
format; naming one in `make(..., wrappers=["react"])` takes the place of the environment's own.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any, Literal

from gem_core.arguments import whole_number
from gem_core.env.base import Env, ResetResult
from gem_core.env.wrapper import Wrapper
from gem_core.errors import ConfigError

__all__ = ["FORMAT_ERROR", "ActionFormat", "Boxed", "Code", "React", "ToolCall", "format_of", "last_boxed", "with_instruction"]

FORMAT_ERROR = -0.1
"""The reward of an action that cannot be read; it also ends the episode, so that it never pays to repeat one."""
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
        self._errors = 0
        result = yield self.env.reset(seed=self._seed, options=options)
        return with_instruction(self.instruction(), self.place, result)

    def on_step(self, action: str) -> Any:
        parsed = self.parse(action)
        if parsed is None:
            if self.on_error != "pass":
                self._errors += 1
                said = f"No action was found in the answer. {self.instruction()}"
                ends = self.on_error == "end" or self._errors >= self.max_errors
                info = {"success": False, "format_error": True} if ends else {"format_error": True}
                return said, self.error_reward, ends, False, info
            parsed = action

        observation, reward, terminated, truncated, info = yield self.env.step(parsed)
        info.setdefault("parsed_action", parsed)
        return observation, reward, terminated, truncated, info

    def sample_action(self) -> str:
        return self.write(self.env.sample_action())


def with_instruction(instruction: str, place: str, result: ResetResult) -> ResetResult:
    """A first observation with what is said about the format."""
    observation, info = result
    if place == "observation":
        return f"{observation}\n{instruction}", info
    return observation, {**info, "system": f"{info['system']}\n\n{instruction}" if info.get("system") else instruction}


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
