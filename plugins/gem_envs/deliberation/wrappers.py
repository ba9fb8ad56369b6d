"""Plan, reflect and memory: wrappers that ask the model for a text between its actions.

The text is sampled and trained like an action, and earns no reward of its own: its return is that
of the actions after it. The environment does not see the turn, so its turn limit counts actions.

| name      | when it asks            | what becomes of the text                                   |
|-----------|-------------------------|------------------------------------------------------------|
| `plan`    | before the first action | it stays in the conversation; `every=n` asks again         |
| `reflect` | after every n actions   | it stays in the conversation                               |
| `memory`  | after every n actions   | it replaces the history: the next prompt has only the      |
|           |                         | task, the notes and the last observation (a new sequence)  |

Stacked wrappers ask one after the other, the inner one first, and do not count each other's texts.
The next request replaces the reply to a text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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
        self._asked = self._due = self._replied = False

    @property
    def open_request(self) -> str:
        """The request that the next completion answers, of this wrapper or one inside, or ""."""
        return self.request if self._asked else getattr(self.env, "open_request", "")

    @property
    def last_reply(self) -> str:
        """The reply to the last completion, of this wrapper or one inside, or ""."""
        return self.reply if self._replied else getattr(self.env, "last_reply", "")

    @property
    def text_wanted(self) -> bool:
        """Whether the next completion is a text, not an action."""
        return bool(self.open_request)

    def on_reset(self, options: Mapping[str, Any]) -> Any:
        self._asked = self._due = self._replied = False
        self._actions = 0
        observation, info = yield self.env.reset(seed=self._seed, options=options)
        self.begin(self._without_request(observation), info)
        return self._ask_if_due(observation, info)

    def begin(self, observation: str, info: dict[str, Any]) -> None:
        """Remember the first observation of the environment."""
        self.observe(observation, info)

    def on_step(self, action: str) -> Any:
        self._replied, self._asked = self._asked, False
        if self._replied:
            observation, info = self.take(action)
            return observation, 0.0, False, False, {"deliberation": True, **info}
        observation, reward, terminated, truncated, info = yield self.env.step(action)
        if not (terminated or truncated):
            if not info.get("deliberation"):
                self._actions += 1
                self._due = self.every is not None and self._actions % self.every == 0
                self.observe(self._without_request(observation), info)
            observation, info = self._ask_if_due(observation, info)
        return observation, reward, terminated, truncated, info

    def _ask_if_due(self, observation: str, info: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Add the request if it is due and no wrapper inside wants a text first."""
        if not self._due or self.text_wanted:
            return observation, info
        self._asked, self._due = True, False
        if "context" in info:
            *messages, last = info["context"].messages
            last = replace(last, content=self._with_request(last.content))
            info = {**info, "context": Context((*messages, last))}
        return self._with_request(observation), info

    def _with_request(self, text: str) -> str:
        """Add the request; it replaces a reply, which would contradict it."""
        reply, text_before = self.last_reply, text.rstrip("\n")
        if reply and text_before.endswith(reply):
            return text_before.removesuffix(reply) + self.request
        return f"{text}\n\n{self.request}"

    def _without_request(self, observation: str) -> str:
        request = self.open_request
        return observation.removesuffix(f"\n\n{request}") if request else observation

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

    def begin(self, observation: str, info: dict[str, Any]) -> None:
        super().begin(observation, info)
        self._due = True


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
        "forgotten, except for the task, your notes and the last observation. Do not act yet."
    )
    example = "Nothing is worth noting."

    def __init__(self, env: Env, every: int = 5, max_characters: int = 2000) -> None:
        super().__init__(env, whole_number("every", every, 1))
        self.max_characters = whole_number("max_characters", max_characters, 1)

    def begin(self, observation: str, info: dict[str, Any]) -> None:
        super().begin(observation, info)
        self._task, self._system = observation, info.get("system")

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
