"""ToGymnasium: wrap a gem environment as a `gymnasium.Env`.

Gymnasium's wrappers, checkers and trainers then accept it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from gem_core.env.base import Env, ResetResult, StepResult
from gem_core.env.maybe_async import Waiter
from gem_core.errors import ConfigError, MissingDependencyError

try:
    import gymnasium
except ImportError as error:
    raise MissingDependencyError("ToGymnasium", "gymnasium", str(error)) from error

__all__ = ["AnyText", "ToGymnasium"]


# mypy runs without gymnasium, hence the ignored misc errors.
class AnyText(gymnasium.spaces.Space[str]):  # type: ignore[misc]
    """The space of all strings.

    `gymnasium.spaces.Text` would require a maximum length and a list of all characters.
    """

    def __init__(self, env: Env | None = None, seed: int | None = None) -> None:
        """Sample legal actions of `env`, or short arbitrary texts without one."""
        super().__init__((), str, seed)
        self._env = env

    @property
    def is_np_flattenable(self) -> bool:
        """False, because a text has no fixed size."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return a legal action in the current episode, drawn with this space's seed."""
        number = int(self.np_random.integers(2**31))
        if self._env is None or not self._env.unwrapped.plays_at_random:
            return f"text {number}"
        self._env.unwrapped.vary_actions(number)
        return self._env.sample_action()

    def contains(self, x: Any) -> bool:
        """Whether `x` is a string."""
        return isinstance(x, str)

    def __deepcopy__(self, memo: dict[int, Any]) -> AnyText:
        return AnyText(self._env)  # shared: a copied environment would not follow the episode

    def __repr__(self) -> str:
        return "AnyText()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText)

    __hash__ = None  # type: ignore[assignment]


class ToGymnasium(gymnasium.Env[str, str]):  # type: ignore[misc]
    """A gem environment as a `gymnasium.Env` with text observations and actions.

        env = ToGymnasium(gem_core.make("game:Wordle-v0-easy"))

    To register it with Gymnasium:

        def wordle(**kwargs):
            return ToGymnasium(gem_core.make("game:Wordle-v0-easy"), **kwargs)

        gymnasium.register("Wordle-v0", wordle)

    Calls to an async environment block. `render_mode="ansi"` renders the latest observation.
    """

    # RUF012: Gymnasium declares a mutable class attribute too.
    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012

    def __init__(self, env: Env, *, render_mode: str | None = None) -> None:
        if not isinstance(env, Env):
            raise ConfigError(f"ToGymnasium takes a gem_core Env, got {type(env).__name__}")
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ConfigError(f"render_mode must be 'ansi' or None, got {render_mode!r}")
        self.env = env
        self.render_mode = render_mode
        self.observation_space: Any = AnyText()
        self.action_space: Any = AnyText(env)
        self._waiter = Waiter()
        self._observation = ""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> ResetResult:
        """Start an episode; without a seed, derive one from the last seed, as Gymnasium does."""
        super().reset(seed=seed)
        next_seed = int(self.np_random.integers(2**31)) if seed is None else seed
        result = cast(
            ResetResult, self._waiter.result(self.env.reset(seed=next_seed, options=options))
        )
        self._observation = result[0]
        return result

    def step(self, action: str) -> StepResult:
        """Take one action."""
        result = cast(StepResult, self._waiter.result(self.env.step(action)))
        self._observation = result[0]
        return result

    def render(self) -> str | None:
        """Return the latest observation if `render_mode` is "ansi"."""
        return self._observation if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Close the environment."""
        self._waiter.result(self.env.close())
        self._waiter.close()

    def __repr__(self) -> str:
        return f"<ToGymnasium{self.env!r}>"

    __str__ = __repr__
