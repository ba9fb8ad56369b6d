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

from gem_core.env import Env, Wrapper
from gem_core.envs.game import FORMAT_ERROR
from gem_core.errors import ConfigError

__all__ = ["ActionFormat", "Boxed", "Code", "React", "ToolCall", "last_boxed"]


_BOXES_TRIED = 64


class ActionFormat(Wrapper):
    """The base of the formats. Subclasses say how to write an action and how to read one."""

    def __init__(
        self,
        env: Env,
        place: Literal["system", "observation"] = "system",
        on_error: Literal["end", "again", "pass"] = "end",
        error_reward: float = FORMAT_ERROR,
    ) -> None:
        """`place`: instructions as a system prompt, or behind the first observation. `on_error`: an answer without an action
        ends the episode, costs only the turn, or goes to the environment as it is."""
        super().__init__(env)
        if place not in ("system", "observation"):
            raise ConfigError(f"place must be 'system' or 'observation'; given: {place!r}")
        if on_error not in ("end", "again", "pass"):
            raise ConfigError(f"on_error must be 'end', 'again' or 'pass'; given: {on_error!r}")
        self.place, self.on_error, self.error_reward = place, on_error, float(error_reward)

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
        observation, info = yield self.env.reset(seed=self._seed, options=options)
        if self.place == "observation":
            return f"{observation}\n{self.instruction()}", info
        system = f"{info['system']}\n\n{self.instruction()}" if info.get("system") else self.instruction()
        return observation, {**info, "system": system}

    def on_step(self, action: str) -> Any:
        parsed = self.parse(action)
        if parsed is None:
            if self.on_error != "pass":
                said = f"No action was found in the answer. {self.instruction()}"
                info = {"success": False, "format_error": True} if self.on_error == "end" else {"format_error": True}
                return said, self.error_reward, self.on_error == "end", False, info
            parsed = action
        observation, reward, terminated, truncated, info = yield self.env.step(parsed)
        info.setdefault("parsed_action", parsed)
        return observation, reward, terminated, truncated, info

    def sample_action(self) -> str:
        return self.write(self.env.sample_action())


class Boxed(ActionFormat):
    r"""The action stands in `\boxed{}`; the last complete box counts."""

    def instruction(self) -> str:
        return f"Give your answer as \\boxed{{{self.action_example}}}."

    def parse(self, text: str) -> str | None:
        return last_boxed(text)

    def write(self, action: str) -> str:
        return f"\\boxed{{{action}}}"


class React(ActionFormat):
    """A thought, then an action on a line of its own; the last action counts."""

    _action = re.compile(r"^[ \t]*Action[ \t]*:[ \t]*(.*?)[ \t]*$", re.MULTILINE | re.IGNORECASE)

    def instruction(self) -> str:
        return f"Answer with your reasoning and one action, in this form:\nThought: your reasoning\nAction: {self.action_example}"

    def parse(self, text: str) -> str | None:
        found = [a for a in self._action.findall(text) if a]
        return found[-1] if found else None

    def write(self, action: str) -> str:
        return f"Thought: I try this.\nAction: {action}"


class ToolCall(ActionFormat):
    """A JSON call of the function `act` in `<tool_call>` tags, as models with function calling write it; the last one counts."""

    _call = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)

    def instruction(self) -> str:
        return (
            "You act by calling the function act(action: str). Write the call as\n"
            f"<tool_call>\n{self._json(self.action_example)}\n</tool_call>"
        )

    def parse(self, text: str) -> str | None:
        for body in reversed(self._call.findall(text)):
            try:
                call = json.loads(body)
            except ValueError:
                continue
            arguments = call.get("arguments")
            if call.get("name") == "act" and isinstance(arguments, dict) and "action" in arguments:
                return str(arguments["action"])
        return None

    def write(self, action: str) -> str:
        return f"<tool_call>\n{self._json(action)}\n</tool_call>"

    @staticmethod
    def _json(action: str) -> str:
        return json.dumps({"name": "act", "arguments": {"action": action}}, ensure_ascii=False)


class Code(ActionFormat):
    """The action is the last fenced code block; a block that is only `act("...")` stands for the text inside."""

    _block = re.compile(r"```[ \t]*[\w+-]*[ \t]*\n(.*?)```", re.DOTALL)

    def instruction(self) -> str:
        return f"Act by writing one block of Python code, in this form:\n```python\nact({self.action_example!r})\n```"

    def parse(self, text: str) -> str | None:
        blocks = self._block.findall(text)
        if not blocks:
            return None
        body: str = blocks[-1].strip("\n")
        return _argument_of_act(body) or body

    def write(self, action: str) -> str:
        return f"```python\nact({action!r})\n```"


def last_boxed(text: str) -> str | None:
    r"""The content of the last complete `\boxed{...}`, braces inside it balanced; None where there is none."""
    start = text.rfind("\\boxed{", 0, text.rfind("}") + 1)
    for _ in range(_BOXES_TRIED):  # a bound, because each unclosed box costs a walk to the end of the text
        if start < 0:
            return None
        depth, begin = 1, start + 7
        position = begin
        while depth and (close := text.find("}", position)) >= 0:
            depth += text.count("{", position, close) - 1
            position = close + 1
        if not depth:
            return text[begin : position - 1]
        start = text.rfind("\\boxed{", 0, start)
    return None


def _argument_of_act(body: str) -> str | None:
    try:
        statement = ast.parse(body, mode="eval").body
        if isinstance(statement, ast.Call) and isinstance(statement.func, ast.Name) and statement.func.id == "act" and len(statement.args) == 1:
            return str(ast.literal_eval(statement.args[0]))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return None
