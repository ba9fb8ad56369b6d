"""Env: the base class of text environments, with Gymnasium's `reset` and `step`.

An author writes `on_reset(options)` and `on_step(action)`, plain or `async def`. The base class
checks arguments and results and owns the random generator. `wrapper.py` has the wrapper base class.

Keys of `info` that the engine reads:

| key             | where     | meaning                                                         |
|-----------------|-----------|-----------------------------------------------------------------|
| `success`       | last step | whether the task was solved                                     |
| `role`          | any       | role: `user` (default), `tool` or `continuation`                |
| `suffix`        | any       | ends the next prompt (a board, a question); not in the history  |
| `system`        | reset     | a system prompt                                                 |
| `context`       | any       | a `Context`: the complete next prompt, replacing the history    |
| `env_id`        | reset     | the component that a mixture chose                              |
| `parsed_action` | step      | the action that a format or tool wrapper parsed                 |
| `use_tool`      | step      | whether the action was a tool call                              |
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Awaitable, Callable, Mapping
from inspect import iscoroutinefunction
from math import isfinite
from types import GeneratorType
from typing import Any, ClassVar, Literal, cast

from gem_core.arguments import copy_containers, short
from gem_core.env.maybe_async import Waiter, after, drive
from gem_core.errors import ActionTypeError, ContractError, OptionError, ResetNeededError

__all__ = ["Env", "Offload", "ResetResult", "StepResult"]

ResetResult = tuple[str, dict[str, Any]]
StepResult = tuple[str, float, bool, bool, dict[str, Any]]
Offload = Callable[..., Awaitable[Any]]
"""`await offload(function, *args)` runs a blocking function, for example in a thread."""


class Env:
    """Base class of all environments. Subclasses define `on_reset` and `on_step`."""

    execution: ClassVar[Literal["inline", "thread", "process"]] = "thread"
    """How the engine runs a step: `inline` for fast pure Python, `thread` if it may block,
    `process` if it may hang or crash the interpreter. The engine awaits an async `on_step`."""
    deterministic: ClassVar[bool] = True
    """Whether (seed, options, actions) determine every observation and reward."""
    option_names: ClassVar[frozenset[str]] = frozenset()
    """The options that `reset` accepts."""
    action_example: str = "action"
    """An example action, for the instructions of an action format."""

    spec: Any = None
    """The `registry.EnvSpec` of an environment that `make` created."""

    _made_with: tuple[tuple[Any, ...], dict[str, Any]]
    _offload: Offload | None
    _phase: Literal["new", "running", "ended"]
    _seed: int
    _turn: int
    _rng: random.Random | None
    _rng_seeded: bool
    _action_rng: random.Random | None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("reset", "step", "close"):
            if name in vars(cls):
                raise ContractError(
                    f"{cls.__qualname__} overrides {name}(); define on_{name}() instead, "
                    f"which Env.{name}() calls and checks. "
                    "For a Gymnasium environment, use FromGymnasium(env)"
                )

    def __new__(cls, *args: Any, **kwargs: Any) -> Env:
        # With a custom __new__, object.__init__ would silently ignore arguments.
        if (args or kwargs) and cls.__init__ is object.__init__:
            raise TypeError(f"{cls.__name__}() takes no arguments")
        self = super().__new__(cls)
        self._made_with = (args, kwargs)  # for `spawn`
        self._offload = None
        self._phase = "new"
        self._seed = 0
        self._turn = 0
        self._rng, self._rng_seeded, self._action_rng = None, False, None
        return self

    # Methods that an author defines.

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        """Start an episode and return (observation, info). `self.rng` has just been seeded."""
        raise NotImplementedError(f"{type(self).__name__} does not define on_reset(options)")

    def on_step(self, action: str) -> StepResult:
        """Take an action and return (observation, reward, terminated, truncated, info)."""
        raise NotImplementedError(f"{type(self).__name__} does not define on_step(action)")

    def on_close(self) -> None:
        """Release resources. Called at most once."""

    def sample_action(self) -> str:
        """Return a random legal action, drawn from `action_rng` to leave the episode unchanged."""
        raise NotImplementedError(f"{type(self).__name__} does not define sample_action()")

    # Methods that a caller uses.

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> ResetResult:
        """Start an episode and return (observation, info); an awaitable if async."""
        if type(seed) is not int or seed < 0:
            seed = _checked_seed(seed)
        options = {} if options is None or options == {} else self._checked_options(options)
        self._phase, self._closed = "new", False
        self._seed = seed
        self._turn = 0
        self._rng_seeded, self._action_rng = False, None
        return self._finish_reset(self._call(self.on_reset, options))

    def step(self, action: str) -> StepResult:
        """Take one action; return an awaitable if the environment is async."""
        if self._phase != "running" or not isinstance(action, str):
            raise self._step_error(action)
        return self._finish_step(self._call(self.on_step, action))

    def close(self) -> Awaitable[None] | None:
        """Release resources; return an awaitable if the environment is async. Idempotent."""
        if vars(self).get("_closed"):
            return None
        self._closed = True
        return cast("Awaitable[None] | None", self._call(self.on_close))

    def spawn(self) -> Env:
        """Create another instance with the same arguments."""
        args, kwargs = self._made_with
        other = type(self)(*args, **kwargs)
        other.spec = self.spec
        return other

    @property
    def unwrapped(self) -> Env:
        """The environment inside all wrappers."""
        return self

    @property
    def is_async(self) -> bool:
        """Whether `reset` and `step` return awaitables."""
        offloaded = self._offload is not None and self.execution != "inline"
        return offloaded or any(map(iscoroutinefunction, (self.on_step, self.on_reset)))

    @property
    def rng(self) -> random.Random:
        """The random generator of this episode; an environment must not use any other."""
        if self._rng is None:
            self._rng = random.Random(self._seed)
        elif not self._rng_seeded:
            self._rng.seed(self._seed)
        self._rng_seeded = True
        return self._rng

    @property
    def action_rng(self) -> random.Random:
        """The random generator of `sample_action`, separate from the episode's."""
        if self._action_rng is None:
            self._action_rng = random.Random(f"{self._seed}/actions")
        return self._action_rng

    def vary_actions(self, number: int) -> None:
        """Reseed `action_rng`, to play several random episodes from the same seed."""
        self.action_rng.seed(f"{self._seed}/actions/{number}")

    @property
    def plays_at_random(self) -> bool:
        """Whether the environment defines `sample_action`."""
        return type(self).sample_action is not Env.sample_action

    @property
    def seed(self) -> int:
        """The seed of the running episode."""
        return self._seed

    @property
    def turn(self) -> int:
        """The number of actions taken in this episode."""
        return self._turn

    @property
    def ended(self) -> bool:
        """Whether the episode has ended."""
        return self._phase == "ended"

    def run_on(self, offload: Offload | None) -> None:
        """Run blocking steps with `offload` and become async; None undoes it."""
        self._offload = offload

    def __enter__(self) -> Env:
        return self

    def __exit__(self, *_: object) -> None:
        waiter = Waiter()
        waiter.result(self.close())
        waiter.close()

    def __repr__(self) -> str:
        """Return the wrappers, outermost first, the class and the id, as in Gymnasium."""
        id = f"<{self.spec.id}>" if self.spec is not None else ""
        return f"<{type(self).__name__}{id}>"

    # Implementation.

    def _name(self) -> str:
        return self.spec.id if self.spec is not None else type(self).__name__

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        if self._offload is None or self.execution == "inline" or iscoroutinefunction(function):
            return function(*args)
        return self._offload(function, *args)

    def _checked_options(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        if not isinstance(options, Mapping):
            raise OptionError(
                f"options of {self._name()} must be a mapping, "
                f"got {type(options).__name__} {short(options)}"
            )
        unknown = ", ".join(repr(name) for name in sorted(set(options) - self.accepted_options))
        if unknown:
            accepted = ", ".join(sorted(self.accepted_options)) or "no options"
            raise OptionError(
                f"{self._name()} does not know the option(s) {unknown}; it takes: {accepted}"
            )
        return {name: copy_containers(value) for name, value in options.items()}

    @property
    def accepted_options(self) -> frozenset[str]:
        """The options that `reset` accepts, including those of wrappers."""
        return self.option_names

    def _finish_reset(self, result: Any) -> ResetResult:
        """Check the result of a reset, which may be a generator or an awaitable."""
        return cast(
            ResetResult,
            after(drive(result) if type(result) is GeneratorType else result, self._check_reset),
        )

    def _check_reset(self, result: ResetResult) -> ResetResult:
        if not (
            isinstance(result, tuple)
            and len(result) == 2
            and isinstance(result[0], str)
            and isinstance(result[1], dict)
        ):
            raise ContractError(
                f"reset() of {self._name()} returned {short(result)}; it must return (str, dict)"
            )
        self._phase = "running"
        return result

    def _step_error(self, action: object) -> Exception:
        """Return the error that explains why `step` cannot take this action."""
        if not isinstance(action, str):
            return ActionTypeError(
                f"step() of {self._name()} takes a string, got {type(action).__name__} "
                f"{short(action)}; the episode is unchanged"
            )
        when = f"after its episode ended at turn {self._turn}"
        if self._phase == "new":
            when = "before reset()"
        return ResetNeededError(f"step() of {self._name()} {when}: call reset(seed=...) first")

    def _finish_step(self, result: Any) -> StepResult:
        """Check the result of a step, which may be a generator or an awaitable."""
        return cast(
            StepResult,
            after(drive(result) if type(result) is GeneratorType else result, self._check_step),
        )

    def _check_step(self, result: Any) -> StepResult:
        """Check a step's result, convert its numbers, and note whether the episode ended."""
        if not isinstance(result, tuple) or len(result) != 5:
            raise ContractError(
                f"step() of {self._name()} returned {short(result)}; it must return "
                "(observation, reward, terminated, truncated, info)"
            )
        observation, reward, terminated, truncated, info = result
        reward = self._as_reward(reward)
        terminated, truncated = self._as_bool(terminated), self._as_bool(truncated)
        if not (isinstance(observation, str) and isinstance(info, dict) and isfinite(reward)):
            raise ContractError(
                f"step() of {self._name()} returned observation {short(observation)}, "
                f"reward {reward}, info {short(info)}; "
                "it must return a str, a finite number and a dict"
            )
        self._turn += 1
        if terminated or truncated:
            self._phase = "ended"
        return observation, reward, terminated, truncated, info

    def _as_reward(self, reward: Any) -> float:
        """Convert a reward to a float: ints, bools and the scalars of numpy and torch are fine."""
        try:
            if isinstance(reward, (str, bytes)):
                raise TypeError
            return float(reward)
        except (TypeError, ValueError, OverflowError):
            raise ContractError(
                f"step() of {self._name()} returned the reward {short(reward)}; it must be a number"
            ) from None

    def _as_bool(self, value: Any) -> bool:
        """Convert `terminated` or `truncated`: 0, 1 and numpy's bools are fine, strings are not."""
        if value == 0 or value == 1:
            return bool(value)
        raise ContractError(
            f"step() of {self._name()} returned {short(value)} for terminated or truncated; "
            "it must be a bool"
        )


def _checked_seed(seed: int | None) -> int:
    if type(seed) is int and seed >= 0:
        return seed
    if seed is None:
        return secrets.randbits(32)
    expected = "seed must be an integer >= 0, or None to draw one"
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise OptionError(f"{expected}, got {type(seed).__name__} {short(seed)}")
    number = seed.__index__()
    if number < 0:
        raise OptionError(f"{expected}, got {number}")
    return number
