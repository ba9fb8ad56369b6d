"""Action formats: wrappers that instruct the model how to write actions, and parse them.

A format changes only the text that reaches the environment, not the sampled ids. A wrapper stack
has one format; `make(..., wrappers=["react"])` replaces the environment's own. The formats are in
`gem_core.wrappers.formats`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from gem_core.arguments import whole_number
from gem_core.env.base import Env, ResetResult
from gem_core.env.wrapper import Wrapper
from gem_core.errors import ConfigError

__all__ = ["FORMAT_ERROR", "ActionFormat", "format_of", "suffix_info", "with_instruction"]

FORMAT_ERROR = -0.1
"""The reward of an action that cannot be parsed. It also ends the episode by default."""


class ActionFormat(Wrapper):
    """Base class of action formats. Subclasses define how to write and parse an action."""

    def __init__(
        self,
        env: Env,
        place: Literal["system", "observation"] = "system",
        on_error: Literal["end", "again", "pass"] = "end",
        error_reward: float = FORMAT_ERROR,
        max_errors: int = 3,
        allow_empty: bool = False,
    ) -> None:
        """Wrap an environment.

        `place` puts the instruction into the system prompt or after the first observation.
        `on_error` decides what a completion without an action does: it ends the episode, costs
        the turn (`again`), or goes to the environment unchanged. The environment does not see
        turns lost to `again`, so its own turn limit cannot end the episode; `max_errors` does.
        An empty action, as in `\\boxed{}`, does not count as an action unless `allow_empty` is set.
        """
        super().__init__(env)
        if place not in ("system", "observation"):
            raise ConfigError(f"place must be 'system' or 'observation', got {place!r}")
        if on_error not in ("end", "again", "pass"):
            raise ConfigError(f"on_error must be 'end', 'again' or 'pass', got {on_error!r}")
        self.place, self.on_error, self.error_reward = place, on_error, float(error_reward)
        self.max_errors = whole_number("max_errors", max_errors, 1)
        if not isinstance(allow_empty, bool):
            raise ConfigError(f"allow_empty must be True or False, got {allow_empty!r}")
        self.allow_empty = allow_empty

    def instruction(self) -> str:
        """Return the instruction for the model."""
        raise NotImplementedError

    def parse(self, text: str) -> str | None:
        """Return the action in a completion, or None if it contains none."""
        raise NotImplementedError

    def write(self, action: str) -> str:
        """Return an action in this format, as a model would write it."""
        raise NotImplementedError

    def on_reset(self, options: Mapping[str, Any]) -> Any:
        self._errors = 0
        observation, info = yield self.env.reset(seed=self._seed, options=options)
        self._suffix = info.get("suffix", "")
        return with_instruction(self.instruction(), self.place, (observation, info))

    def on_step(self, action: str) -> Any:
        parsed = self.parse(action)
        if parsed is None or not (self.allow_empty or parsed.strip()):
            if self.on_error != "pass":
                self._errors += 1
                message = f"No action was found in the answer. {self.instruction()}"
                ends = self.on_error == "end" or self._errors >= self.max_errors
                info = {"success": False} if ends else suffix_info(self._suffix)
                return message, self.error_reward, ends, False, {**info, "format_error": True}
            parsed = action

        observation, reward, terminated, truncated, info = yield self.env.step(parsed)
        self._suffix = info.get("suffix", "")
        info = {**info, "parsed_action": info.get("parsed_action", parsed)}
        return observation, reward, terminated, truncated, info

    def sample_action(self) -> str:
        return self.write(self.env.sample_action())


def suffix_info(suffix: str) -> dict[str, Any]:
    """Return the info of a turn without a step, which shows the last suffix again."""
    return {"suffix": suffix} if suffix else {}


def with_instruction(instruction: str, place: str, result: ResetResult) -> ResetResult:
    """Return the result of a reset with an instruction added."""
    observation, info = result
    if place == "observation":
        return f"{observation}\n{instruction}", info
    system = f"{info['system']}\n\n{instruction}" if info.get("system") else instruction
    return observation, {**info, "system": system}


def format_of(env: Env) -> ActionFormat | None:
    """Return the action format in a wrapper stack, or None."""
    while isinstance(env, Wrapper):
        if isinstance(env, ActionFormat):
            return env
        env = env.env
    return None
