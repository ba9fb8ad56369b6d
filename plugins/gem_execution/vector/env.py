"""VectorEnv: many environments stepped as one, with Gymnasium's semantics, each failing on its own.

    with make_vec("game:GuessTheNumber-v0-hard", 128) as vec:
        observations, infos = vec.reset(seed=0)                                    # environment i starts from seed 0 + i
        observations, rewards, terminations, truncations, infos = vec.step(actions)

`step` takes an action for every environment, or a mapping from index to action for some of them, and answers in that order.

| autoreset    | when an episode ends                                                                                     |
|--------------|----------------------------------------------------------------------------------------------------------|
| `next_step`  | the next step ignores its action and returns the first observation, reward 0, `info["autoreset"]`         |
| `same_step`  | the step returns the next episode's first observation; `info["final_observation"]`, `info["final_info"]`  |
| `disabled`   | `reset(indices=[...])` is due; stepping before that is refused                                            |

An environment that raises, overruns its deadline, returns nonsense or dies takes no other with it. Its step is reported as
truncated with `info["failure"]`, a `Failure`, and the reward NaN: unknown, never a silent 0. A new environment takes its place
at the reset, which after an overrun comes with the next step even in `same_step`. After k autoresets an environment has the
seed `(first seed + k * 0x9E3779B9) mod 2**32`.

`mode="sync"` steps one after the other on the caller's thread. `mode="async"` steps cheap environments there too, blocking ones
on threads (or processes) of their own, async ones on an event loop, all at once; with `send` and `recv` the caller takes
whichever are ready, so that a slow one holds up nobody. `mode="ray"` is the same with environments spread over a cluster.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from functools import partial
from operator import countOf
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, cast

from gem_core.env.base import Env, StepResult
from gem_core.env.maybe_async import Waiter, drive
from gem_core.errors import (
    ActionTypeError,
    ConfigError,
    ContractError,
    DeadlineError,
    ResetNeededError,
)
from gem_execution.vector.runner import Background, OnLoop, OnThread, Runner
from gem_execution.vector.slot import Autoreset, Slot, failed

__all__ = ["AsyncVectorEnv", "Autoreset", "Batch", "Ready", "VectorEnv"]

_SECONDS_TO_CLOSE = 5.0


class Batch(NamedTuple):
    """What a step returns, one entry for each environment that was stepped."""

    observations: list[str]
    rewards: list[float]
    terminations: list[bool]
    truncations: list[bool]
    infos: list[dict[str, Any]]


class Ready(NamedTuple):
    """What `recv` returns: which environments answered, in the order they did, and what."""

    indices: list[int]
    observations: list[str]
    rewards: list[float]
    terminations: list[bool]
    truncations: list[bool]
    infos: list[dict[str, Any]]


class VectorEnv:
    """Environments stepped one after the other on the caller's thread."""

    def __init__(
        self,
        makers: Sequence[Callable[[], Env]],
        *,
        autoreset: Autoreset | str = Autoreset.NEXT_STEP,
        env_ids: Sequence[str] | None = None,
    ) -> None:
        """`makers`: one function for each environment, called again where a broken one has to be replaced."""
        if not makers:
            raise ConfigError("a vector needs at least one environment; given: none")
        try:
            self.autoreset = Autoreset(autoreset)
        except ValueError:
            raise ConfigError(
                f"autoreset must be one of {[a.value for a in Autoreset]}; given: {autoreset!r}"
            ) from None
        self._slots = [Slot(make_env, self.autoreset) for make_env in makers]
        self.env_ids = (
            list(env_ids)
            if env_ids is not None
            else [type(e.unwrapped).__name__ for e in self.envs if e is not None]
        )
        self.num_envs = len(self._slots)
        self._waiter = Waiter()
        self._closed = False
        self._may_refuse = True
        """Whether a step may have to be refused because an environment has no running episode."""

    @property
    def envs(self) -> list[Env | None]:
        """The environments; None where a broken one has not been replaced yet."""
        return [slot.env for slot in self._slots]

    @property
    def seeds(self) -> list[int]:
        """The seed of each environment's running episode."""
        return [slot.seed for slot in self._slots]

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        indices: Sequence[int] | None = None,
    ) -> tuple[list[str], list[dict[str, Any]]]:
        """Starts an episode in every environment, or in those at `indices`: (observations, infos).

        `seed`: a number s gives s + i to environment i, a sequence one to each that is reset, None draws them.
        """
        outcomes = self._advance(
            {i: slot.begin(s, o) for i, slot, s, o in self._starts(seed, options, indices)}
        )
        return [o[0] for o in outcomes], [o[4] for o in outcomes]

    def step(self, actions: Sequence[str] | Mapping[int, str]) -> Batch:
        """Takes an action in every environment, or in those a mapping names; answers in that order."""
        indices, given = self._checked_actions(actions)
        slots = self._slots if type(indices) is range else [self._slots[i] for i in indices]
        flat: list[
            Any
        ] = []  # what the steps return, one after the other: a column is every fifth of it
        extend = flat.extend
        for slot, action in zip(slots, given, strict=True):
            try:
                if slot.running:  # the short way of `slot.act`
                    result = slot.step(action)
                    if type(result) is not tuple:
                        result = self._waiter.result(result)
                    if result[2] or result[3]:
                        result = slot.ended_here(result) or self._waiter.result(
                            drive(slot.ended(result))
                        )
                else:
                    result = self._waiter.result(drive(slot.act(action)))
            except Exception as error:  # noqa: BLE001 - one environment's failure is data, and no other's business
                result = self._waiter.result(drive(slot.fail("step", error)))
            extend(result)
        if len(flat) != 5 * len(
            slots
        ):  # which no environment's step lets through, unless it has one of its own
            raise ContractError(
                "a step() returned other than (observation, reward, terminated, truncated, info)"
            )
        return Batch(flat[::5], flat[1::5], flat[2::5], flat[3::5], flat[4::5])

    def close(self) -> None:
        """Closes all environments. Calling it twice is harmless."""
        if self._closed:
            return
        self._closed = True
        for slot in self._slots:
            if slot.env is not None:
                self._waiter.result(slot.env.close())
        self._waiter.close()

    def __enter__(self) -> VectorEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _starts(
        self,
        seed: int | Sequence[int | None] | None,
        options: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None,
        indices: Sequence[int] | None,
    ) -> list[tuple[int, Slot, int, Mapping[str, Any] | None]]:
        chosen = (
            list(range(self.num_envs))
            if indices is None
            else [self._checked_index(i) for i in indices]
        )
        if len(set(chosen)) != len(chosen):
            raise ConfigError(f"reset() was given the same index twice: {chosen}")
        if seed is None:
            seeds: list[int | None] = [None] * len(chosen)
        elif isinstance(seed, Sequence) and not isinstance(seed, (str, bytes)):
            seeds = list(seed)
        elif isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0:
            seeds = [seed + i for i in chosen]
        else:
            raise ConfigError(
                f"seed must be a whole number from 0 up, a sequence of them, or None; given: {seed!r}"
            )
        each = (
            [options] * len(chosen)
            if options is None or isinstance(options, Mapping)
            else list(options)
        )
        if len(seeds) != len(chosen) or len(each) != len(chosen):
            raise ConfigError(
                f"reset() of {len(chosen)} environments was given {len(seeds)} seeds and {len(each)} options"
            )
        return [
            (i, self._slots[i], secrets.randbits(32) if s is None else s, o)
            for i, s, o in zip(chosen, seeds, each, strict=True)
        ]

    def _checked_index(self, i: Any) -> int:
        if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < self.num_envs:
            raise ConfigError(f"{i!r} is no index of a vector of {self.num_envs} environments")
        return i

    def _checked_actions(
        self, actions: Sequence[str] | Mapping[int, str]
    ) -> tuple[Sequence[int], Collection[str]]:
        """Which environments are to take which actions; nothing is stepped unless all of them can be."""
        if isinstance(actions, Mapping):
            indices: Sequence[int] = [self._checked_index(i) for i in actions]
            given: Collection[str] = actions.values()
        elif isinstance(actions, (str, bytes)) or not isinstance(actions, Sequence):
            raise ConfigError(
                f"step() was given {type(actions).__name__}; it takes a list of {self.num_envs} actions, or a mapping from index "
                "to action"
            )
        elif len(actions) != self.num_envs:
            raise ConfigError(
                f"step() was given {len(actions)} actions for {self.num_envs} environments; to step some of them, give a mapping "
                "from index to action"
            )
        else:
            indices, given = range(self.num_envs), actions
        if countOf(map(type, given), str) != len(given):
            for i, action in zip(indices, given, strict=True):
                if not isinstance(action, str):
                    raise ActionTypeError(
                        f"the action for environment {i} is {type(action).__name__} {action!r}; an action is a string"
                    )
        if self._may_refuse:
            for i in indices:
                slot = self._slots[i]
                if not slot.running and (self.autoreset is Autoreset.DISABLED or not slot.started):
                    raise ResetNeededError(
                        f"environment {i} has no running episode: call reset(indices=[{i}]) first"
                    )
            self._may_refuse = self.autoreset is Autoreset.DISABLED or not all(
                slot.started for slot in self._slots
            )
        return indices, given

    def _advance(self, work: Mapping[int, Generator[Any, Any, StepResult]]) -> list[StepResult]:
        return [self._waiter.result(drive(steps)) for steps in work.values()]


class AsyncVectorEnv(VectorEnv):
    """Environments stepped all at once, each in the way its class asks for."""

    def __init__(
        self,
        makers: Sequence[Callable[[], Env]],
        *,
        autoreset: Autoreset | str = Autoreset.NEXT_STEP,
        env_ids: Sequence[str] | None = None,
        deadline: float | None = None,
    ) -> None:
        """`deadline`: seconds for one step or reset of one environment; an overdue one is abandoned, or killed where it lives in
        a process of its own, and reported as a failure."""
        if deadline is not None and not deadline > 0:
            raise ConfigError(
                f"deadline must be above 0, or None for no limit; given: {deadline!r}"
            )
        super().__init__(makers, autoreset=autoreset, env_ids=env_ids)
        self.deadline = deadline
        self._finished: SimpleQueue[tuple[int, int, StepResult]] = SimpleQueue()
        self._ready: dict[int, StepResult] = {}
        self._pending: dict[int, tuple[int, float, str]] = {}
        self._calls = 0
        self._background: Background | None = None
        self.on_closed: Callable[[], None] | None = None
        """Called when the vector was closed, for what was made along with it."""
        self._runners = [self._runner_for(slot) for slot in self._slots]
        self._all_here = all(runner.here for runner in self._runners)

    @property
    def pending(self) -> list[int]:
        """The environments that were sent something and have not answered."""
        return [*self._pending, *self._ready]

    def send(self, actions: Sequence[str] | Mapping[int, str]) -> None:
        """Begins a step in every environment, or in those a mapping names; `recv` gives the answers."""
        indices, given = self._checked_actions(actions)
        self._check_idle(indices)
        self._start(
            {i: self._slots[i].act(action) for i, action in zip(indices, given, strict=True)},
            "step",
        )

    def send_reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        indices: Sequence[int] | None = None,
    ) -> None:
        """Begins a reset, as `reset` does; `recv` gives the answers, with reward 0."""
        starts = self._starts(seed, options, indices)
        self._check_idle(i for i, *_ in starts)
        self._start({i: slot.begin(s, o) for i, slot, s, o in starts}, "reset")

    def recv(self, at_least: int = 1, timeout: float | None = None) -> Ready:
        """The answers that are there, after waiting for `at_least` of them; fewer where `timeout` seconds pass first."""
        at_least = min(at_least, len(self._pending) + len(self._ready))
        end = None if timeout is None else time.monotonic() + timeout
        self._collect(block=False)
        while len(self._ready) < at_least and self._collect(end=end):
            pass
        ready, self._ready = self._ready, {}
        return Ready(
            list(ready),
            *(list(column) for column in zip(*ready.values())) if ready else ([], [], [], [], []),
        )

    def step(self, actions: Sequence[str] | Mapping[int, str]) -> Batch:
        """Takes an action in every environment, or in those a mapping names, and waits for all of them."""
        if self._all_here and not self._ready:
            return super().step(actions)
        indices, given = self._checked_actions(actions)
        self._check_idle(indices)
        outcomes = self._advance(
            {i: self._slots[i].act(action) for i, action in zip(indices, given, strict=True)}
        )
        return Batch(*map(list, zip(*outcomes))) if outcomes else Batch([], [], [], [], [])

    def close(self) -> None:
        """Closes all environments, those that are still busy without waiting for them. Calling it twice is harmless."""
        if self._closed:
            return
        self._closed = True
        ends = [
            runner.close(slot.env)
            for runner, slot in zip(self._runners, self._slots, strict=True)
            if slot.env is not None
        ]
        due = time.monotonic() + _SECONDS_TO_CLOSE
        for end in ends:
            end.wait(max(0.0, due - time.monotonic()))
        for runner in self._runners:
            runner.end()
        if self._background is not None:
            self._background.end()
        if self.on_closed is not None:
            self.on_closed()

    def _advance(self, work: Mapping[int, Generator[Any, Any, StepResult]]) -> list[StepResult]:
        self._check_idle(work)
        self._start(work, "step")
        while any(i in self._pending for i in work):
            self._collect()
        return [self._ready.pop(i) for i in work]

    def _start(self, work: Mapping[int, Generator[Any, Any, StepResult]], where: str) -> None:
        due = math.inf if self.deadline is None else time.monotonic() + self.deadline
        here: list[tuple[int, Generator[Any, Any, StepResult]]] = []
        for i, steps in work.items():
            if self._runners[i].here:
                here.append((i, steps))
            else:
                self._calls += 1
                self._pending[i] = (self._calls, due, where)
                self._runners[i].start(self._slots[i], steps, partial(self._report, i, self._calls))
        for i, steps in here:  # behind the others, which go on meanwhile
            self._ready[i] = cast(StepResult, drive(steps))

    def _report(self, i: int, call: int, outcome: StepResult) -> None:
        self._finished.put((i, call, outcome))

    def _collect(self, *, block: bool = True, end: float | None = None) -> bool:
        """Takes in what has finished, waiting for the next to finish or to be overdue; False where `end` came first."""
        now = time.monotonic()
        due = min((d for _, d, _ in self._pending.values()), default=math.inf)
        wait = min(due, math.inf if end is None else end) - now
        try:
            if not block or wait <= 0:
                i, call, outcome = self._finished.get_nowait()
            else:
                i, call, outcome = self._finished.get(timeout=None if wait == math.inf else wait)
            if (
                i in self._pending and self._pending[i][0] == call
            ):  # else it came after its deadline
                del self._pending[i]
                self._ready[i] = outcome
            return True
        except Empty:
            if not block:
                return False
        now = time.monotonic()
        for i, (_, due, where) in list(self._pending.items()):
            if due <= now:
                del self._pending[i]
                self._overdue(i, where)
        return end is None or now < end

    def _overdue(self, i: int, where: str) -> None:
        hanging = self._slots[i]
        self._slots[i], self._runners[i] = hanging.renewed(), self._runners[i].abandon(hanging.env)
        self._ready[i] = failed(
            where, DeadlineError(f"{where} of {self.env_ids[i]} took over {self.deadline:g} s")
        )

    def _check_idle(self, indices: Iterable[int]) -> None:
        busy = [i for i in indices if i in self._pending or i in self._ready]
        if busy:
            raise ConfigError(
                f"environments {busy} were sent something and have not been received: call recv() first"
            )

    def _runner_for(self, slot: Slot) -> Runner:
        env = cast(Env, slot.env)
        if env.is_async:
            self._background = self._background or Background(self.num_envs)
            slot.make_env = partial(_made_for, self._background, slot.make_env)
            env.run_on(self._background.threads.call)
            return OnLoop(self._background)
        env.run_on(_nowhere)  # only to ask whether any of it would be run elsewhere
        blocks = env.is_async
        env.run_on(None)
        return OnThread() if blocks else Runner()


def _made_for(background: Background, make_env: Callable[[], Env]) -> Env:
    env = make_env()
    env.run_on(background.threads.call)  # for what blocks in an async environment
    return env


async def _nowhere(*_: Any) -> Any:
    raise NotImplementedError
