r"""History wrappers: choose which part of the episode so far the model sees.

By default the engine appends to the conversation, which is cheapest and trains as one sequence.
These wrappers set another prompt in `info["context"]`, and the engine starts a new sequence:

| name                   | prompt after a task T, actions a1, a2, observations O1, O2, suffix S |
|------------------------|----------------------------------------------------------------------|
| `concat`               | user: `T\nO1\nO2\nS`                                                 |
| `concat_with_action`   | user: `T\na1\nO1\na2\nO2\nS`                                         |
| `concat_chat`          | user: T, assistant: a1, user: O1, assistant: a2, user: `O2\nS`       |
| `concat_chat_on_reset` | the template around `T`, then a1, O1, a2, `O2\nS` as plain text      |

The last one only appends, so it gives one sequence. `window=k` keeps the task and the last k turns.
A suffix ends the prompt of one turn and is not part of the history.
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
    """Base class of history wrappers. Subclasses store the turns and build the prompt."""

    def __init__(self, env: Env, window: int | None = None) -> None:
        super().__init__(env)
        self.window = whole_number_or_none("window", window, 1, "the whole history")

    def begin(self, task: str, info: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Start a history and return the observation and info to show."""
        raise NotImplementedError

    def add_turn(
        self, action: str, observation: str, info: dict[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """Add a turn and return the observation and info to show."""
        raise NotImplementedError

    def on_reset(self, options: Mapping[str, Any]) -> Any:
        observation, info = yield self.env.reset(seed=self._seed, options=options)
        return self.begin(observation, info)

    def on_step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = yield self.env.step(action)
        observation, info = self.add_turn(action, observation, info)
        return observation, reward, terminated, truncated, info


class Concat(History):
    """All observations as one text; `actions` includes the actions."""

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
        turn = _line(action) + _line(observation) if self.actions else _line(observation)
        if self.window is None:
            self._text += turn  # cheaper than joining all turns again
        else:
            self._recent.append(turn)
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
    """The conversation, with a window, and with a suffix only in the last message.

    It rewrites the context only when the window drops a turn or an earlier suffix goes away.
    With `template`, a function from messages to text, the observation is the rendered text.
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
            return observation, info  # the engine appends it to the conversation
        messages = [*self._start, *(message for turn in self._turns for message in turn)]
        if info.get("suffix"):
            last = messages[-1]
            messages[-1] = Message(last.role, _line(last.content) + info["suffix"])
        info = {**info, "suffix": "", "context": Context(tuple(messages))}
        if self.template is not None:
            observation = self.template([m.as_dict() for m in messages])
        return observation, info


class ConcatChatOnReset(History):
    """The chat template around the first prompt only; plain text follows it."""

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
