"""Env: a text world. `reset` gives an observation, `step` takes an action and gives the next one with its reward.

An author writes `on_reset(options)` and `on_step(action)`, plain or `async def`; the base class checks what comes in and
what goes out, owns the random generator, and makes every environment restorable. `wrapper.py` has what goes around one.

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

import copy
import random
import secrets
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from inspect import iscoroutinefunction
from math import isfinite
from types import GeneratorType
from typing import Any, ClassVar, Literal, Protocol, cast

from gem_core.bridge import after, drive
from gem_core.errors import ActionTypeError, NonsenseError, OptionError, ResetNeededError, StateError

__all__ = ["Env", "EnvState", "Offload", "ResetResult", "Shortcut", "StepResult"]

ResetResult = tuple[str, dict[str, Any]]
StepResult = tuple[str, float, bool, bool, dict[str, Any]]
Offload = Callable[..., Awaitable[Any]]
"""`await offload(function, *args)` runs a blocking function elsewhere."""


class Shortcut(Protocol):
    """What many episodes of one environment are played through: the environment, or a shorter way to the same results."""

    def reset(self, *, seed: int, options: Mapping[str, Any] | None) -> ResetResult:
        """As `Env.reset`."""

    def step(self, action: str) -> StepResult:
        """As `Env.step`, with what is known to be a string."""


@dataclass(frozen=True, slots=True)
class EnvState:
    """Where an episode stands: enough to bring another instance of the same environment to the same place."""

    seed: int
    options: Mapping[str, Any]
    actions: tuple[str, ...]
    observation: str
    """What was last observed; a replay that ends elsewhere is refused."""
    snapshot: Any = None
    """None means: reset with the seed and options, and replay the actions."""
    taken_from: str = ""
    """The classes it was taken from, outermost first: another stack of wrappers does not take it."""


class Env:
    """The base of every environment. Subclasses write `on_reset` and `on_step`."""

    execution: ClassVar[Literal["inline", "thread", "process"]] = "thread"
    """How the engine runs a step: `inline` for microseconds of pure Python, `thread` where it may block, `process` where
    it may hang for good or take the interpreter down. Environments with an async `on_step` are awaited."""
    deterministic: ClassVar[bool] = True
    """Whether (seed, options, actions) fix every observation and reward."""
    snapshots: ClassVar[Literal["copy", "replay"]] = "replay"
    """`copy` where a deep copy of the attributes is the whole state; `replay` re-plays the actions."""
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
    _actions: list[str]
    _observation: str
    _rng: random.Random | None
    _action_rng: random.Random | None

    def __new__(cls, *args: Any, **kwargs: Any) -> Env:
        if (args or kwargs) and cls.__init__ is object.__init__:  # which would swallow them, since there is a __new__
            raise TypeError(f"{cls.__name__}() takes no arguments")
        self = super().__new__(cls)
        self._made_with = (args, kwargs)  # so that `spawn` can make another one
        # All of them here, not in the first reset: Python keeps those an instance has early where they are found faster.
        self._offload = None
        self._phase = "new"
        self._seed = 0
        self._options = {}
        self._actions = []
        self._observation = ""
        self._rng = self._action_rng = None
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

    def on_snapshot(self) -> Any:
        """Plain data that `on_restore` can bring another instance to; None to have the actions replayed."""
        if self.snapshots == "replay":
            return None
        return copy.deepcopy({k: v for k, v in vars(self).items() if k not in BOOKKEEPING})

    def on_restore(self, snapshot: Any) -> None:
        """Takes over what `on_snapshot` gave."""
        vars(self).update(copy.deepcopy(snapshot))

    def sample_action(self) -> str:
        """A legal action chosen at random, from a generator of its own so that it leaves the episode untouched."""
        raise NotImplementedError(f"{type(self).__name__} does not define sample_action()")

    # What everybody calls.

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        """Starts an episode: (observation, info). An async environment returns an awaitable of it."""
        if type(seed) is not int or seed < 0:
            seed = _checked_seed(seed)
        options = {} if options is None or options == {} else self._checked_options(options)
        self._phase = "new"
        self._seed = seed
        self._options = options
        self._actions = []
        self._rng = self._action_rng = None
        result: Any = self.on_reset(options) if self._offload is None else self._call(self.on_reset, options)
        if type(result) is tuple:
            if len(result) == 2 and type(result[0]) is str and type(result[1]) is dict:  # as in `step`
                self._phase = "running"
                self._observation = result[0]
                return result
            return self._began(result)
        if type(result) is GeneratorType:
            result = drive(result)
        return cast(ResetResult, after(result, self._began))

    def step(self, action: str) -> StepResult:
        """Takes one action. An async environment returns an awaitable of the result."""
        if self._phase != "running" or not isinstance(action, str):
            raise self._refusal(action)
        result: Any = self.on_step(action) if self._offload is None else self._call(self.on_step, action)
        return self._took(action, result) if type(result) is tuple else self._will_take(action, result)

    def shortcut(self) -> Shortcut:
        """What to play many episodes through; good for as long as the stack of wrappers stays as it is."""
        return self

    def close(self) -> Awaitable[None] | None:
        """Gives resources back; an async environment returns an awaitable. Calling it twice is harmless."""
        if vars(self).get("_closed"):
            return None
        self._closed = True
        return cast("Awaitable[None] | None", self._call(self.on_close))

    def get_state(self) -> EnvState:
        """Where the episode stands now."""
        if self._phase == "new":
            raise StateError(f"{self._name()} has no state before reset(): call reset(seed=...) first")
        snapshot = self._take_snapshot()
        if snapshot is None and not self.deterministic:
            raise StateError(
                f"{self._name()} declares itself nondeterministic, so that replaying its actions would not lead back here; "
                "give it on_snapshot and on_restore to have states of it"
            )
        return EnvState(self._seed, dict(self._options), tuple(self._actions), self._observation, snapshot, self._outline())

    def set_state(self, state: EnvState) -> Awaitable[None] | None:
        """Brings this instance to where `state` was taken; an async environment returns an awaitable."""
        if not isinstance(state, EnvState):
            raise StateError(f"set_state() was given {type(state).__name__}; it takes what get_state() returned")
        if state.taken_from != self._outline():
            raise StateError(f"the state was taken from {state.taken_from}; it cannot be set on {self._outline()}")
        if state.snapshot is not None:
            self._restore_snapshot(state.snapshot)
            return None
        return after(self._replay(state), lambda observation: self._check_replay(state, observation))

    def spawn(self, same_state: bool = False) -> Env:
        """Another instance made with the same arguments; with `same_state`, standing where this one stands."""
        args, kwargs = self._made_with
        twin = type(self)(*args, **kwargs)
        twin.spec = self.spec
        if not same_state:
            return twin
        return cast(Env, after(twin.set_state(self.get_state()), lambda _: twin))

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
        return self._rng

    def draw(self, below: int) -> int:
        """A number from 0 to `below` - 1 that the seed alone decides, the same at every call: for an episode whose only chance
        it is, since seeding a generator takes longer than the rest of such a reset."""
        bits = (self._seed + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        bits = (bits ^ bits >> 32) * 0xD6E8FEB86659FD93 & 0xFFFFFFFFFFFFFFFF
        return (bits >> 32) * below >> 32

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
        return len(self._actions)

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

    # How it works.

    def _name(self) -> str:
        return self.spec.id if self.spec is not None else type(self).__name__

    def _outline(self) -> str:
        return type(self).__name__

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        if self._offload is None or self.execution == "inline" or iscoroutinefunction(function):
            return function(*args)
        return self._offload(function, *args)

    def _checked_options(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        if not isinstance(options, Mapping):
            raise OptionError(f"options of {self._name()} must be a mapping, not {type(options).__name__} {_short(options)}")
        unknown = sorted(set(options) - self.accepted_options)
        if unknown:
            known = ", ".join(sorted(self.accepted_options)) or "none at all"
            raise OptionError(f"{self._name()} does not know the option(s) {', '.join(map(repr, unknown))}; it takes: {known}")
        return dict(options)

    @property
    def accepted_options(self) -> frozenset[str]:
        """The options `reset` understands, wrappers included."""
        return self.option_names

    def _began(self, result: ResetResult) -> ResetResult:
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], str) and isinstance(result[1], dict)):
            raise NonsenseError(f"reset() of {self._name()} returned {_short(result)}; it must return (str, dict)")
        self._phase, self._observation = "running", result[0]
        return result

    def _refusal(self, action: object) -> Exception:
        """Why an action cannot be taken now."""
        if not isinstance(action, str):
            return ActionTypeError(
                f"step() of {self._name()} was given {type(action).__name__} {_short(action)}; an action is a string. "
                "The episode stands where it stood."
            )
        if self._phase == "new":
            return ResetNeededError(f"step() of {self._name()} before reset(): call reset(seed=...) first")
        return ResetNeededError(
            f"step() of {self._name()} after its episode ended at turn {len(self._actions)}: call reset(seed=...) first"
        )

    def _took(self, action: str, result: StepResult) -> StepResult:
        """Checks the answer to an action, converts what takes nothing but a conversion, and keeps account."""
        if len(result) != 5:
            raise self._nonsense(result)
        observation, reward, terminated, truncated, info = result
        if not (  # as it has to be, which it nearly always is
            type(observation) is str
            and type(reward) is float
            and reward - reward == 0.0  # finite
            and (terminated is False or terminated is True)
            and (truncated is False or truncated is True)
            and type(info) is dict
        ):
            reward, terminated, truncated = self._plain(reward), self._flag(terminated), self._flag(truncated)
            if not (isinstance(observation, str) and isinstance(info, dict) and isfinite(reward)):
                raise NonsenseError(
                    f"step() of {self._name()} returned observation {_short(observation)}, reward {reward}, info {_short(info)}; "
                    "it must return a str, a finite number and a dict"
                )
            result = observation, reward, terminated, truncated, info
        self._actions.append(action)
        self._observation = observation
        if terminated or truncated:
            self._phase = "ended"
        return result

    def _will_take(self, action: str, result: Any) -> StepResult:
        """`_took`, for an answer that is not simply there: one that has to be waited for, or is no plain tuple."""

        def took(result: Any) -> StepResult:
            if not isinstance(result, tuple):
                raise self._nonsense(result)
            return self._took(action, (*result,))

        return cast(StepResult, after(drive(result) if type(result) is GeneratorType else result, took))

    def _nonsense(self, result: object) -> NonsenseError:
        return NonsenseError(
            f"step() of {self._name()} returned {_short(result)}; it must return "
            "(observation, reward, terminated, truncated, info)"
        )

    def _plain(self, reward: Any) -> float:
        """A reward as a float: whole numbers, bools and the scalars of numpy and torch are taken."""
        try:
            if isinstance(reward, (str, bytes)):
                raise TypeError
            return float(reward)
        except (TypeError, ValueError, OverflowError):
            raise NonsenseError(f"step() of {self._name()} returned the reward {_short(reward)}; it must be a number") from None

    def _flag(self, value: Any) -> bool:
        """`terminated` or `truncated` as a bool: 0, 1 and numpy's bools are taken; a text would be true whatever it says."""
        if value == 0 or value == 1:
            return bool(value)
        raise NonsenseError(f"step() of {self._name()} returned {_short(value)} for terminated or truncated; it must be a bool")

    def _take_snapshot(self) -> Any:
        own = self.on_snapshot()
        if own is None:
            return None
        return {"own": own, "kept": {k: copy.deepcopy(vars(self)[k]) for k in _EPISODE if k in vars(self)}}

    def _restore_snapshot(self, snapshot: Any) -> None:
        self.on_restore(snapshot["own"])
        vars(self).update(copy.deepcopy(snapshot["kept"]))

    def _replay(self, state: EnvState) -> Any:
        def steps() -> Generator[Any, Any, str]:
            observation, _ = yield self.reset(seed=state.seed, options=state.options)
            for action in state.actions:
                observation, *_ = yield self.step(action)
            return cast(str, observation)

        return drive(steps())

    def _check_replay(self, state: EnvState, observation: str) -> None:
        if observation != state.observation:
            self._phase = "new"
            raise StateError(
                f"replaying {len(state.actions)} action(s) of {self._name()} with seed {state.seed} ended at "
                f"{_short(observation)}, "
                f"not at {_short(state.observation)}: the environment is not deterministic. "
                "Give it on_snapshot/on_restore, or declare deterministic = False."
            )


_EPISODE = ("_phase", "_seed", "_options", "_actions", "_observation", "_rng", "_action_rng")
BOOKKEEPING = frozenset({"_made_with", "_offload", "_closed", "spec", "env", *_EPISODE})


def _checked_seed(seed: int | None) -> int:
    if type(seed) is int and seed >= 0:
        return seed
    if seed is None:
        return secrets.randbits(32)
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise OptionError(f"a seed is a whole number from 0 up, or None to draw one; given: {type(seed).__name__} {_short(seed)}")
    number = seed.__index__()
    if number < 0:
        raise OptionError(f"a seed is a whole number from 0 up, or None to draw one; given: {number}")
    return number


def _short(value: object, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
