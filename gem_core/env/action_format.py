"""Action format: the wrapper that tells a model how to write its action, and reads the action from what it wrote.

The sampled ids stay as they are; only the text that reaches the environment changes. A stack of wrappers holds one format;
naming one in `make(..., wrappers=["react"])` replaces the environment's own. `gem_core.wrappers.formats` has the formats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from gem_core.arguments import whole_number
from gem_core.env.base import Env, ResetResult
from gem_core.env.wrapper import Wrapper
from gem_core.errors import ConfigError

__all__ = ["FORMAT_ERROR", "ActionFormat", "format_of", "with_instruction"]

FORMAT_ERROR = -0.1
"""The reward of an action that cannot be read; it also ends the episode, so that it never pays to repeat one."""


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
    return observation, {
        **info,
        "system": f"{info['system']}\n\n{instruction}" if info.get("system") else instruction,
    }


def format_of(env: Env) -> ActionFormat | None:
    """The action format in a stack of wrappers, None where there is none."""
    while isinstance(env, Wrapper):
        if isinstance(env, ActionFormat):
            return env
        env = env.env
    return None
