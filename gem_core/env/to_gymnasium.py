"""ToGymnasium: a gem environment as a `gymnasium.Env`, for Gymnasium's wrappers, checkers and trainers."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import isawaitable
from typing import Any

from gem_core.env.base import Env, ResetResult, StepResult
from gem_core.errors import ConfigError, MissingDependencyError

try:
    import gymnasium
except ImportError as error:
    raise MissingDependencyError("ToGymnasium", "gymnasium", str(error)) from error

__all__ = ["AnyText", "ToGymnasium"]


class AnyText(gymnasium.spaces.Space[str]):  # type: ignore[misc]  # gymnasium is absent where types are checked
    """The space of all strings. Sampling takes a legal action of the environment, where there is one."""

    def __init__(self, env: Env | None = None) -> None:
        super().__init__((), str)
        self._env = env

    @property
    def is_np_flattenable(self) -> bool:
        """Never: a text has no fixed size."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A legal action, or a short text for observations."""
        return self._env.sample_action() if self._env is not None and self._env.plays_at_random else "text"

    def contains(self, x: Any) -> bool:
        """Whether `x` is a string."""
        return isinstance(x, str)

    def __repr__(self) -> str:
        return "AnyText()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText)

    __hash__ = None  # type: ignore[assignment]


class ToGymnasium(gymnasium.Env[str, str]):  # type: ignore[misc]  # as above
    """`ToGymnasium(gem_core.make("game:Wordle-v0-easy"))` is a `gymnasium.Env` with text observations and actions."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium declares it as an instance's

    def __init__(self, env: Env) -> None:
        if not isinstance(env, Env):
            raise ConfigError(f"ToGymnasium takes a gem_core Env; given: {type(env).__name__}")
        if env.is_async:
            raise ConfigError(f"{env!r} is async; Gymnasium's reset() and step() return at once. Use gem_core.make_vec")
        self.env = env
        self.observation_space: Any = AnyText()
        self.action_space: Any = AnyText(env)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        """Starts an episode. Gymnasium's rule holds: without a seed, the next one of a generator the last seed set."""
        super().reset(seed=seed)
        result = self.env.reset(seed=int(self.np_random.integers(2**31)) if seed is None else seed, options=options)
        return _now(result)  # type: ignore[no-any-return]

    def step(self, action: str) -> StepResult:
        """Takes one action."""
        return _now(self.env.step(action))  # type: ignore[no-any-return]

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()


def _now(result: Any) -> Any:
    if isawaitable(result):
        raise ConfigError("the environment answered with an awaitable; Gymnasium's reset() and step() return at once")
    return result
