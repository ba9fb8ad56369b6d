"""Env: a text world. `reset` gives an observation, `step` takes an action and gives the next one with its reward.

An author writes `on_reset(options)` and `on_step(action)`, plain or `async def`; the base class checks what comes in and
what goes out, and owns the random generator. `wrapper.py` has what goes around one.

Keys of `info` that mean something to the engine:

| key            | where      | meaning                                                                              |
|----------------|------------|--------------------------------------------------------------------------------------|
| `success`      | at the end | whether the task was solved                                                          |
| `role`         | any        | role of this observation: `user` (default), `tool`, or `continuation`                |
| `suffix`       | any        | closes the prompt of the next turn (a board, a question); history wrappers drop it later |
| `system`       | reset      | a system prompt                                                                      |
| `context`      | any        | a `Context`: all the model is shown next, in place of the history so far             |
| `env_id`       | reset      | the component a mixture chose                                                        |
| `parsed_action`| step       | what a format or tool wrapper understood                                             |
| `use_tool`     | step       | whether the action was a tool call                                                   |
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Awaitable, Callable, Mapping
from inspect import iscoroutinefunction
from math import isfinite
from types import GeneratorType
from typing import Any, ClassVar, Literal, cast

from gem_core.arguments import short
from gem_core.env.maybe_async import after, drive
from gem_core.errors import ActionTypeError, ContractError, OptionError, ResetNeededError

__all__ = ["Env", "Offload", "ResetResult", "StepResult"]

ResetResult = tuple[str, dict[str, Any]]
StepResult = tuple[str, float, bool, bool, dict[str, Any]]
Offload = Callable[..., Awaitable[Any]]
"""`await offload(function, *args)` runs a blocking function elsewhere."""


class Env:
    """The base of every environment. Subclasses write `on_reset` and `on_step`."""

    execution: ClassVar[Literal["inline", "thread", "process"]] = "thread"
    """How the engine runs a step: `inline` for microseconds of pure Python, `thread` where it may block, `process` where
    it may hang for good or take the interpreter down. Environments with an async `on_step` are awaited."""
    deterministic: ClassVar[bool] = True
    """Whether (seed, options, actions) fix every observation and reward."""
    option_names: ClassVar[frozenset[str]] = frozenset()
    """The options `reset` understands."""
    action_example: str = "action"
    """What an action looks like, as a placeholder, for the instructions of an action format."""

    spec: Any = None
    """What the environment was made from, where `make` made it: a `registry.EnvSpec`."""

    _made_with: tuple[tuple[Any, ...], dict[str, Any]]
    _offload: Offload | None
    _phase: Literal["new", "running", "ended"]
    _seed: int
    _options: Mapping[str, Any]
    _turn: int
    _rng: random.Random | None
    _rng_seeded: bool
    _action_rng: random.Random | None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("reset", "step", "close"):
            if name in vars(cls):
                raise ContractError(
                    f"{cls.__qualname__} overrides {name}(); define on_{name}() instead: `Env.{name}` checks arguments and "
                    f"results and calls it. A Gymnasium environment can be used as it is: FromGymnasium(env)"
                )

    def __new__(cls, *args: Any, **kwargs: Any) -> Env:
        if (
            args or kwargs
        ) and cls.__init__ is object.__init__:  # which would swallow them, since there is a __new__
            raise TypeError(f"{cls.__name__}() takes no arguments")
        self = super().__new__(cls)
        self._made_with = (args, kwargs)  # for `spawn`
        self._offload = None
        self._phase = "new"
        self._seed = 0
        self._options = {}
        self._turn = 0
        self._rng, self._rng_seeded, self._action_rng = None, False, None
        return self

    # What an author writes.

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        """The first observation of a new episode. `self.rng` has just been seeded."""
        raise NotImplementedError(f"{type(self).__name__} does not define on_reset(options)")

    def on_step(self, action: str) -> StepResult:
        """The answer to an action: (observation, reward, terminated, truncated, info)."""
        raise NotImplementedError(f"{type(self).__name__} does not define on_step(action)")

    def on_close(self) -> None:
        """Gives resources back. Called once at most."""

    def sample_action(self) -> str:
        """A legal action chosen at random, from a generator of its own so that it leaves the episode untouched."""
        raise NotImplementedError(f"{type(self).__name__} does not define sample_action()")

    # What everybody calls.

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> ResetResult:
        """Starts an episode: (observation, info). An async environment returns an awaitable of it."""
        if type(seed) is not int or seed < 0:
            seed = _checked_seed(seed)
        options = {} if options is None or options == {} else self._checked_options(options)
        self._phase = "new"
        self._seed = seed
        self._options = options
        self._turn = 0
        self._rng_seeded, self._action_rng = False, None
        return self._finish_reset(self._call(self.on_reset, options))

    def step(self, action: str) -> StepResult:
        """Takes one action. An async environment returns an awaitable of the result."""
        if self._phase != "running" or not isinstance(action, str):
            raise self._refusal(action)
        return self._finish_step(self._call(self.on_step, action))

    def close(self) -> Awaitable[None] | None:
        """Gives resources back; an async environment returns an awaitable. Calling it twice is harmless."""
        if vars(self).get("_closed"):
            return None
        self._closed = True
        return cast("Awaitable[None] | None", self._call(self.on_close))

    def spawn(self) -> Env:
        """Another instance made with the same arguments."""
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
        return offloaded or iscoroutinefunction(self.on_step)

    @property
    def rng(self) -> random.Random:
        """The generator of this episode, seeded by `reset`: the only source of chance an environment may use."""
        if self._rng is None:
            self._rng = random.Random(self._seed)
        elif not self._rng_seeded:
            self._rng.seed(self._seed)
        self._rng_seeded = True
        return self._rng

    @property
    def action_rng(self) -> random.Random:
        """For `sample_action`, so that sampling an action leaves the episode as it was."""
        if self._action_rng is None:
            self._action_rng = random.Random(f"{self._seed}/actions")
        return self._action_rng

    def vary_actions(self, number: int) -> None:
        """Gives `sample_action` other chances than the seed alone does: those of one of several games from a start."""
        self.action_rng.seed(f"{self._seed}/actions/{number}")

    @property
    def plays_at_random(self) -> bool:
        """Whether there is a `sample_action`."""
        return type(self).sample_action is not Env.sample_action

    @property
    def seed(self) -> int:
        """The seed of the running episode."""
        return self._seed

    @property
    def turn(self) -> int:
        """How many actions were taken in this episode."""
        return self._turn

    @property
    def ended(self) -> bool:
        """Whether the episode is over and `reset` is due."""
        return self._phase == "ended"

    def run_on(self, offload: Offload | None) -> None:
        """Has blocking steps run by `offload` (threads, for instance): the environment is async from then on. None ends it."""
        self._offload = offload

    def __enter__(self) -> Env:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        """The class and the id, wrappers outermost first, as Gymnasium prints it."""
        return (
            f"<{type(self).__name__}<{self.spec.id}>>"
            if self.spec is not None
            else f"<{type(self).__name__}>"
        )

    # How it works.

    def _name(self) -> str:
        return self.spec.id if self.spec is not None else type(self).__name__

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        if self._offload is None or self.execution == "inline" or iscoroutinefunction(function):
            return function(*args)
        return self._offload(function, *args)

    def _checked_options(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        if not isinstance(options, Mapping):
            raise OptionError(
                f"options of {self._name()} must be a mapping, not {type(options).__name__} {short(options)}"
            )
        unknown = sorted(set(options) - self.accepted_options)
        if unknown:
            known = ", ".join(sorted(self.accepted_options)) or "none at all"
            raise OptionError(
                f"{self._name()} does not know the option(s) {', '.join(map(repr, unknown))}; it takes: {known}"
            )
        return dict(options)

    @property
    def accepted_options(self) -> frozenset[str]:
        """The options `reset` understands, wrappers included."""
        return self.option_names

    def _finish_reset(self, result: Any) -> ResetResult:
        """The checked result of a reset that may be a generator or an awaitable."""
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

    def _refusal(self, action: object) -> Exception:
        """Why an action cannot be taken now."""
        if not isinstance(action, str):
            return ActionTypeError(
                f"step() of {self._name()} was given {type(action).__name__} {short(action)}; an action is a string. "
                "The episode stands where it stood."
            )
        if self._phase == "new":
            return ResetNeededError(
                f"step() of {self._name()} before reset(): call reset(seed=...) first"
            )
        return ResetNeededError(
            f"step() of {self._name()} after its episode ended at turn {self._turn}: call reset(seed=...) first"
        )

    def _finish_step(self, result: Any) -> StepResult:
        """The checked result of a step that may be a generator or an awaitable."""
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
        reward, terminated, truncated = (
            self._as_reward(reward),
            self._flag(terminated),
            self._flag(truncated),
        )
        if not (isinstance(observation, str) and isinstance(info, dict) and isfinite(reward)):
            raise ContractError(
                f"step() of {self._name()} returned observation {short(observation)}, reward {reward}, info {short(info)}; "
                "it must return a str, a finite number and a dict"
            )
        self._turn += 1
        if terminated or truncated:
            self._phase = "ended"
        return observation, reward, terminated, truncated, info

    def _as_reward(self, reward: Any) -> float:
        """A reward as a float: whole numbers, bools and the scalars of numpy and torch are taken."""
        try:
            if isinstance(reward, (str, bytes)):
                raise TypeError
            return float(reward)
        except (TypeError, ValueError, OverflowError):
            raise ContractError(
                f"step() of {self._name()} returned the reward {short(reward)}; it must be a number"
            ) from None

    def _flag(self, value: Any) -> bool:
        """`terminated` or `truncated` as a bool: 0, 1 and numpy's bools are taken; a text would be true whatever it says."""
        if value == 0 or value == 1:
            return bool(value)
        raise ContractError(
            f"step() of {self._name()} returned {short(value)} for terminated or truncated; it must be a bool"
        )


def _checked_seed(seed: int | None) -> int:
    if type(seed) is int and seed >= 0:
        return seed
    if seed is None:
        return secrets.randbits(32)
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise OptionError(
            f"a seed is a whole number from 0 up, or None to draw one; given: {type(seed).__name__} {short(seed)}"
        )
    number = seed.__index__()
    if number < 0:
        raise OptionError(
            f"a seed is a whole number from 0 up, or None to draw one; given: {number}"
        )
    return number
