"""FromGymnasium: wrap an environment with Gymnasium's API as a gem environment.

Does not import gymnasium.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gem_core.arguments import short
from gem_core.env.base import Env, ResetResult, StepResult
from gem_core.errors import ConfigError, ContractError

__all__ = ["FromGymnasium"]


class FromGymnasium(Env):
    """Play a Gymnasium environment as text.

        env = FromGymnasium(lambda: gymnasium.make("MyText-v0"))
        env = FromGymnasium(lambda: gymnasium.make("FrozenLake-v1"), to_text=str)  # "0" to "3"
        gem_core.register("mine:Text-v0", lambda: FromGymnasium(gymnasium.make("MyText-v0")))

    Observations that are not strings need `to_text`. A text space receives actions unchanged, a
    `Discrete` space receives them as integers; other action spaces need `to_action`. An invalid
    action ends the episode with reward 0 and `info["format_error"]`.
    """

    def __init__(
        self,
        env: Any,
        *,
        to_text: Callable[[Any], str] | None = None,
        to_action: Callable[[str], Any] | None = None,
        option_names: Iterable[str] = (),
        action_example: str | None = None,
    ) -> None:
        """Wrap `env`: an environment, or a function or class that creates one.

        `spawn` and `check_env` create several instances and need a function or class.
        `to_action` raises ValueError or KeyError for an invalid action.
        `option_names` are the options that `reset` accepts.
        """
        makes_envs = isinstance(env, type) or (callable(env) and not hasattr(env, "step"))
        self.inner = env() if makes_envs else env
        if not (hasattr(self.inner, "reset") and hasattr(self.inner, "step")):
            created = f", which returned {short(self.inner)}" if makes_envs else ""
            raise ConfigError(
                "FromGymnasium takes an environment with reset() and step(), "
                f"or a function that creates one, got {short(env)}{created}"
            )
        self._makes_envs = makes_envs
        self._space: Any = getattr(self.inner, "action_space", None)
        # A custom to_action may not accept the text of a sample.
        self._samples = to_action is None and hasattr(self._space, "sample")
        self.to_text, self.to_action = to_text, to_action or self._default_to_action()
        self._options_of_inner = frozenset(option_names)
        self.action_example = action_example or ("0" if self.to_action is int else "action")
        if getattr(getattr(self.inner, "spec", None), "nondeterministic", False):
            self.deterministic = False  # type: ignore[misc]  # as the inner environment declares

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        result = self.inner.reset(seed=self.seed, options=dict(options) or None)
        if not isinstance(result, tuple) or len(result) != 2:
            raise ContractError(
                f"{self._inner_name()}.reset() returned {short(result)}, expected "
                "(observation, info); convert an environment of the older gym API first, "
                "for example with shimmy"
            )
        return self._text(result[0]), dict(result[1])

    def on_step(self, action: str) -> StepResult:
        try:
            inner_action = self.to_action(action)
        except (ValueError, KeyError) as error:
            return self._invalid_action(action, str(error))
        if (
            not isinstance(inner_action, str)
            and hasattr(self._space, "contains")
            and not self._space.contains(inner_action)
        ):
            return self._invalid_action(action, f"it is not in {self._space}")
        result = self.inner.step(inner_action)
        if not isinstance(result, tuple) or len(result) != 5:
            raise ContractError(
                f"{self._inner_name()}.step() returned {short(result)}, expected "
                "(observation, reward, terminated, truncated, info)"
            )
        observation, reward, terminated, truncated, info = result
        return self._text(observation), reward, terminated, truncated, dict(info)

    def on_close(self) -> None:
        if hasattr(self.inner, "close"):
            self.inner.close()

    def sample_action(self) -> str:
        """Sample the action space with `action_rng`."""
        if not self.plays_at_random:
            raise NotImplementedError(
                f"{self._inner_name()} has no action space whose samples are valid actions as text"
            )
        self._space.seed(self.action_rng.getrandbits(31))
        return str(self._space.sample())

    @property
    def plays_at_random(self) -> bool:
        """Whether the environment has an action space and no custom `to_action`."""
        return self._samples

    @property
    def accepted_options(self) -> frozenset[str]:
        """The `option_names` passed to the constructor."""
        return self._options_of_inner

    def spawn(self) -> Env:
        """Create another instance; raise `ConfigError` if `env` was not a function or class."""
        if not self._makes_envs:
            raise ConfigError(
                f"{self!r} cannot create another {self._inner_name()}; pass a function that "
                "creates it, as in FromGymnasium(lambda: gymnasium.make('MyText-v0'))"
            )
        return super().spawn()

    def __repr__(self) -> str:
        if self.spec is not None:
            return super().__repr__()
        return f"<FromGymnasium<{self._inner_name()}>>"

    def _inner_name(self) -> str:
        return type(getattr(self.inner, "unwrapped", self.inner)).__name__

    def _default_to_action(self) -> Callable[[str], Any]:
        if hasattr(self._space, "n") and hasattr(self._space, "start"):  # Discrete
            return int
        dtype = getattr(self._space, "dtype", None)
        if dtype is not None and getattr(dtype, "kind", "U") != "U":
            raise ConfigError(
                f"{self._inner_name()} has the action space {self._space}, which takes no text; "
                "pass to_action=, a function from strings to actions"
            )
        return str

    def _invalid_action(self, action: str, reason: str) -> StepResult:
        return (
            f"{short(action)} is not an action: {reason}.",
            0.0,
            True,
            False,
            {"success": False, "format_error": True},
        )

    def _text(self, observation: Any) -> str:
        text = observation if self.to_text is None else self.to_text(observation)
        if not isinstance(text, str):
            if self.to_text is not None:
                raise ContractError(f"to_text() returned {short(text)}, expected a string")
            raise ContractError(
                f"{self._inner_name()} returned the observation {short(text)}, expected a string; "
                "pass to_text=, a function from observations to strings"
            )
        return text
