"""FromGymnasium: an environment with Gymnasium's `reset` and `step` as a gem environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gem_core.arguments import short
from gem_core.env.base import Env, ResetResult, StepResult
from gem_core.errors import ConfigError, ContractError

__all__ = ["FromGymnasium"]


class FromGymnasium(Env):
    """Plays a Gymnasium environment as text.

        env = FromGymnasium(gymnasium.make("MyText-v0"))
        gem_core.register("mine:Text-v0", lambda: FromGymnasium(gymnasium.make("MyText-v0")))

    Observations and actions that are no strings need `to_text` and `to_action`.
    """

    def __init__(
        self,
        env: Any,
        *,
        to_text: Callable[[Any], str] | None = None,
        to_action: Callable[[str], Any] | None = None,
        action_example: str = "action",
    ) -> None:
        """`env`: an environment, or a function that makes one, which is what `check_env` needs to make several. `to_action`
        may raise ValueError for a text that is no action: the episode ends without a reward."""
        self.inner = env() if callable(env) and not hasattr(env, "step") else env
        if not (hasattr(self.inner, "reset") and hasattr(self.inner, "step")):
            raise ConfigError(f"FromGymnasium takes an environment with reset() and step(), or a function; given: {short(env)}")
        self.to_text, self.to_action, self.action_example = to_text, to_action, action_example

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        observation, info = self.inner.reset(seed=self.seed % 2**32, options=dict(options) or None)
        return self._text(observation), dict(info)

    def on_step(self, action: str) -> StepResult:
        try:
            inner_action = action if self.to_action is None else self.to_action(action)
        except ValueError as error:
            return f"{action!r:.80} is not an action: {error}", 0.0, True, False, {"success": False, "format_error": True}
        observation, reward, terminated, truncated, info = self.inner.step(inner_action)
        return self._text(observation), reward, terminated, truncated, dict(info)

    def on_close(self) -> None:
        if hasattr(self.inner, "close"):
            self.inner.close()

    def sample_action(self) -> str:
        """A sample of the action space, seeded by this episode."""
        if getattr(self.inner, "action_space", None) is None:
            raise NotImplementedError(f"{type(self.inner).__name__} has no action_space to sample from")
        self.inner.action_space.seed(self.action_rng.getrandbits(31))
        return str(self.inner.action_space.sample())

    @property
    def accepted_options(self) -> frozenset[str]:
        """All: the inner environment checks its options itself."""
        return _Everything()

    def _text(self, observation: Any) -> str:
        text = observation if self.to_text is None else self.to_text(observation)
        if not isinstance(text, str):
            raise ContractError(
                f"{type(self.inner).__name__} returned the observation {short(observation)}; a gem environment speaks text. "
                "Give FromGymnasium(env, to_text=...), a function from observations to strings"
            )
        return text


class _Everything(frozenset[str]):
    """A set that contains every name."""

    def __contains__(self, _: object) -> bool:
        return True

    def __rsub__(self, other: Any) -> Any:
        return frozenset()
