"""Plan, reflect and memory: wrappers that ask the model for a text between its actions.

The text is sampled and trained like an action, and earns no reward of its own: its return is that
of the actions after it. The environment does not see the turn, so its turn limit counts actions.

| name      | when it asks            | what becomes of the text                                   |
|-----------|-------------------------|------------------------------------------------------------|
| `plan`    | before the first action | it stays in the conversation; `every=n` asks again         |
| `reflect` | after every n actions   | it stays in the conversation                               |
| `memory`  | after every n actions   | it replaces the history: the next prompt has only the      |
|           |                         | task, the notes and the last observation (a new sequence)  |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gem_core.arguments import whole_number, whole_number_or_none
from gem_core.env.base import Env
from gem_core.env.wrapper import Wrapper
from gem_core.errors import ConfigError
from gem_core.types import Context, Message

__all__ = ["Deliberation", "Memory", "Plan", "Reflect"]


class Deliberation(Wrapper):
    """Base class: asks for a text, takes the next completion as this text, and goes on."""

    request = ""
    """The request for the text, after an observation."""
    reply = ""
    """The observation after the text."""
    example = ""
    """The text that baseline players write."""

    def __init__(self, env: Env, every: int | None) -> None:
        super().__init__(env)
        self.every = whole_number_or_none("every", every, 1, "only at the start")
        self._asked = False

    @property
    def text_wanted(self) -> bool:
        """Whether the next completion is a text, for this wrapper or one inside, not an action."""
        return self._asked or bool(getattr(self.env, "text_wanted", False))

    def on_reset(self, options: Mapping[str, Any]) -> Any:
        self._asked = False
        self._actions = 0
        observation, info = yield self.env.reset(seed=self._seed, options=options)
        self.observe(observation, info)
        return self.begin(observation, info)

    def begin(self, observation: str, info: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the observation and info to show after a reset."""
        return observation, info

    def on_step(self, action: str) -> Any:
        if self._asked:
            self._asked = False
            observation, info = self.take(action)
            return observation, 0.0, False, False, {"deliberation": True, **info}
        observation, reward, terminated, truncated, info = yield self.env.step(action)
        self._actions += 1
        if not (terminated or truncated):
            self.observe(observation, info)
            if self.every is not None and self._actions % self.every == 0:
                observation = self.ask(observation)
        return observation, reward, terminated, truncated, info

    def ask(self, observation: str) -> str:
        """Want a text next, and return the observation with the request."""
        self._asked = True
        return f"{observation}\n\n{self.request}"

    def observe(self, observation: str, info: dict[str, Any]) -> None:
        """Remember an observation of the environment."""
        # A suffix, such as a board, is part of one prompt only; the action needs it again.
        self._suffix: str = info.get("suffix") or ""

    def take(self, text: str) -> tuple[str, dict[str, Any]]:
        """Take the text, and return the next observation and its info."""
        return self.reply, {"suffix": self._suffix} if self._suffix else {}

    def sample_action(self) -> str:
        return self.example if self._asked else self.env.sample_action()


class Plan(Deliberation):
    """Asks for a plan before the first action, and again after every `every` actions."""

    request = "First write a plan: the steps you will take. Do not act yet."
    reply = "Now act, one action at a time."
    example = "I try the possible actions one after the other."

    def __init__(self, env: Env, every: int | None = None) -> None:
        super().__init__(env, every)

    def begin(self, observation: str, info: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return self.ask(observation), info


class Reflect(Deliberation):
    """Asks after every `every` actions what they have shown."""

    request = "Before you act again: what have your actions shown, and what will you change?"
    reply = "Now act again."
    example = "I have learned a little, and go on."

    def __init__(self, env: Env, every: int = 3) -> None:
        super().__init__(env, whole_number("every", every, 1))


class Memory(Deliberation):
    """Asks for notes after every `every` actions, and drops the history in their favour.

    `max_characters` limits the notes that the next prompts show.
    """

    request = (
        "Write notes now: what you know and what is left to do. The conversation will be "
        "forgotten, except for the task, your notes and this observation. Do not act yet."
    )
    example = "Nothing is worth noting."

    def __init__(self, env: Env, every: int = 5, max_characters: int = 2000) -> None:
        super().__init__(env, whole_number("every", every, 1))
        self.max_characters = whole_number("max_characters", max_characters, 1)

    def begin(self, observation: str, info: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self._task, self._system = observation, info.get("system")
        return observation, info

    def observe(self, observation: str, info: dict[str, Any]) -> None:
        if "context" in info:
            raise ConfigError(
                "memory cannot be used with a wrapper that rewrites the history, such as concat; "
                "remove one of them"
            )
        super().observe(observation, info)
        self._observation = observation

    def take(self, text: str) -> tuple[str, dict[str, Any]]:
        notes = text.strip()[: self.max_characters].rstrip() or "(none)"
        prompt = (
            f"{self._task}\n\nYour notes:\n{notes}\n\nThe last observation:\n{self._observation}"
        )
        messages: tuple[Message, ...] = (Message("user", f"{prompt}\n{self._suffix}".rstrip("\n")),)
        if self._system:
            messages = (Message("system", self._system), *messages)
        return prompt, {"context": Context(messages)}
