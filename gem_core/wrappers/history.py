r"""History: what of an episode's past the model is shown.

The engine itself keeps the whole conversation, append-only, which is the cheapest and trains as one row of tokens. These
wrappers show something else, and put it into `info["context"]`, so that the engine starts the prompt anew:

| name                   | after two turns of a task T with observations O1, O2, actions a1, a2 and a suffix S             |
|------------------------|-------------------------------------------------------------------------------------------------|
| `concat`               | user: `T\nO1\nO2\nS`                                                                            |
| `concat_with_action`   | user: `T\na1\nO1\na2\nO2\nS`                                                                    |
| `concat_chat`          | user: T, assistant: a1, user: O1, assistant: a2, user: `O2\nS`                                  |
| `concat_chat_on_reset` | the template around `T`, then a1, O1, a2, `O2\nS` as plain text behind it: append-only, one row |

`window=k` keeps the task and the last k turns. A suffix belongs to one turn: it closes the prompt of that turn, in front
of the generation prompt, and is not part of the history.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from gem_core.arguments import whole_number_or_none
from gem_core.env.base import Env
from gem_core.env.wrapper import Wrapper
from gem_core.types import Context, Message, Role

__all__ = ["Concat", "ConcatChat", "ConcatChatOnReset", "History"]


class History(Wrapper):
    """The base: remembers what was said, shows it in the subclass's way."""

    def __init__(self, env: Env, window: int | None = None) -> None:
        super().__init__(env)
        self.window = whole_number_or_none("window", window, 1, "the whole history")

    def begin(self, task: str, info: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """What is shown at the start."""
        raise NotImplementedError

    def add_turn(
        self, action: str, observation: str, info: dict[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """What is shown after an action and its answer."""
        raise NotImplementedError

    def on_reset(self, options: Mapping[str, Any]) -> Any:
        observation, info = yield self.env.reset(seed=self._seed, options=options)
        return self.begin(observation, info)

    def on_step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = yield self.env.step(action)
        observation, info = self.add_turn(action, observation, info)
        return observation, reward, terminated, truncated, info


class Concat(History):
    """One text of all observations, with the actions between them if asked for."""

    def __init__(self, env: Env, window: int | None = None, actions: bool = False) -> None:
        super().__init__(env, window)
        self.actions = actions

    def begin(self, task: str, info: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self._system: str | None = info.get("system")
        self._text = _line(task)
        self._recent: deque[str] = deque(maxlen=self.window)
        return self._show(info)

    def add_turn(
        self, action: str, observation: str, info: dict[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        said = _line(action) + _line(observation) if self.actions else _line(observation)
        if self.window is None:
            self._text += (
                said  # one growing string: a turn costs one copy of it, not a join over all turns
            )
        else:
            self._recent.append(said)
        return self._show(info)

    def _show(self, info: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        text = self._text + "".join(self._recent) if self._recent else self._text
        suffix = info.get("suffix")
        if suffix:
            text += suffix
        messages: tuple[Message, ...] = (Message("user", text),)
        if self._system:
            messages = (Message("system", self._system), *messages)
        return text, {**info, "suffix": "", "context": Context(messages)}


class ConcatChat(History):
    """The conversation, with a window, and with a suffix only in its last message.

    The context is rewritten only where it has to be: when the window lets a turn go, or an older suffix goes. With
    `template`, a function from messages to text such as a tokenizer's, the observation itself is the rendered text.
    """

    def __init__(
        self,
        env: Env,
        window: int | None = None,
        template: Callable[[list[dict[str, str]]], str] | None = None,
    ) -> None:
        super().__init__(env, window)
        self.template = template

    def begin(self, task: str, info: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self._start = [Message("user", task)]
        if info.get("system"):
            self._start.insert(0, Message("system", info["system"]))
        self._turns: deque[tuple[Message, Message]] = deque(maxlen=self.window)
        self._had_suffix = bool(info.get("suffix"))
        return self._show(task, info, rewritten=False)

    def add_turn(
        self, action: str, observation: str, info: dict[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        rewritten = self._had_suffix or len(self._turns) == self.window
        role: Role = info.get("role", "user")
        self._turns.append((Message("assistant", action), Message(role, observation)))
        self._had_suffix = bool(info.get("suffix"))
        return self._show(observation, info, rewritten)

    def _show(
        self, observation: str, info: dict[str, Any], rewritten: bool
    ) -> tuple[str, dict[str, Any]]:
        if self.template is None and not rewritten:
            return observation, info  # the engine appends it to what the model has seen
        messages = [*self._start, *(message for turn in self._turns for message in turn)]
        if info.get("suffix"):
            last = messages[-1]
            messages[-1] = Message(last.role, _line(last.content) + info["suffix"])
        info = {**info, "suffix": "", "context": Context(tuple(messages))}
        if self.template is not None:
            observation = self.template([m.as_dict() for m in messages])
        return observation, info


class ConcatChatOnReset(History):
    """The template around the first prompt only; what follows stands behind it as plain text."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)

    def begin(self, task: str, info: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return task, info

    def add_turn(
        self, action: str, observation: str, info: dict[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        return observation, {**info, "role": "continuation"}


def _line(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"
