r"""The built-in action formats: `\boxed{}`, ReAct, tool calls and code blocks."""

from __future__ import annotations

import ast
import json
import re

from gem_core.env.action_format import ActionFormat

__all__ = ["Boxed", "Code", "React", "ToolCall", "last_boxed", "without_surrogates"]

_BRACES = re.compile(r"\\boxed\{|[{}]")


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last complete `\boxed{...}`, with balanced braces, or None."""
    _, box, tail = text.rpartition("\\boxed{")
    if not box:
        return None
    content, close, _ = tail.partition("}")
    if close and "{" not in content:
        return content
    # The box contains braces or is never closed: one pass over all braces, in linear time.
    opened: list[int] = []
    box_span = (0, 0)
    for brace in _BRACES.finditer(text):
        if brace[0] != "}":
            opened.append(brace.end() if brace[0] != "{" else -1)
        elif opened and (begin := opened.pop()) > box_span[0]:
            box_span = (begin, brace.start())
    return text[slice(*box_span)] if box_span[0] else None


def without_surrogates(text: str) -> str:
    """Join surrogate pairs, and replace lone surrogates, which UTF-8 cannot encode, by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Boxed(ActionFormat):
    r"""The action is in `\boxed{}`; the last complete box counts."""

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
        actions = [a for a in map(str.strip, self._action.findall(text)) if a or self.allow_empty]
        return actions[-1] if actions else None

    def write(self, action: str) -> str:
        return f"Thought: I try this.\nAction: {action}"


class ToolCall(ActionFormat):
    """A JSON call of the function `act` in `<tool_call>` tags; the last call counts."""

    def instruction(self) -> str:
        return (
            "You act by calling the function act(action: str). Write the call as\n"
            f"<tool_call>\n{self._json(self.env.action_example)}\n</tool_call>"
        )

    def parse(self, text: str) -> str | None:
        end = text.rfind("</tool_call>")
        while end >= 0:  # backwards, reading each part of the text once
            start = text.rfind("<tool_call>", 0, end)
            if start < 0:
                return None
            try:
                call = json.loads(text[start + len("<tool_call>") : end])
            except (ValueError, RecursionError):
                call = None
            if isinstance(call, dict) and call.get("name") == "act":
                arguments = call.get("arguments")
                if isinstance(arguments, dict) and "action" in arguments:
                    return without_surrogates(str(arguments["action"]))
            end = text.rfind("</tool_call>", 0, start)
        return None

    def write(self, action: str) -> str:
        return f"<tool_call>\n{self._json(action)}\n</tool_call>"

    @staticmethod
    def _json(action: str) -> str:
        return json.dumps({"name": "act", "arguments": {"action": action}}, ensure_ascii=False)


class Code(ActionFormat):
    """The action is the last fenced code block, or the string in it if it is only `act("...")`."""

    _block = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)
    _act = re.compile(
        r"""\s*act\(\s*("[^"\\\n]*(?:\\.[^"\\\n]*)*"|'[^'\\\n]*(?:\\.[^'\\\n]*)*'|[+-]?[\d.]+)\s*\)\s*"""
    )

    def instruction(self) -> str:
        block = f"```python\nact({self.env.action_example!r})\n```"
        return f"Act by writing one block of Python code, in this form:\n{block}"

    def parse(self, text: str) -> str | None:
        blocks = self._block.findall(text)
        if not blocks:
            return None
        body: str = blocks[-1].strip("\n")
        act = self._act.fullmatch(body)
        if act is None:
            return body
        try:  # only a string or a number: other text from a model can crash Python's parser
            return without_surrogates(str(ast.literal_eval(act[1])))
        except (SyntaxError, ValueError):
            return body

    def write(self, action: str) -> str:
        return f"```python\nact({action!r})\n```"
