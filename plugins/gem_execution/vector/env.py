"""Vector environments with Gymnasium semantics and isolated failures.

    with make_vec("game:GuessTheNumber-v0-hard", 128) as vec:
        observations, infos = vec.reset(seed=0)  # environment i gets seed 0 + i
        observations, rewards, terminations, truncations, infos = vec.step(actions)

`step` takes one action per environment, or a mapping from index to action for some of them. The
results have the same order.

| autoreset   | when an episode ends                                                              |
|-------------|-----------------------------------------------------------------------------------|
| `next_step` | the next step ignores its action and resets: reward 0, `info["autoreset"]`        |
| `same_step` | the step resets: `info["final_observation"]`, `info["final_info"]` are the old    |
| `disabled`  | the caller calls `reset(indices=[...])`; a step before that raises                |

A failure of one environment (an error, a missed deadline, an invalid result, a dead process) does
not affect the others. Its step is truncated, with a `Failure` in `info["failure"]` and the reward
NaN, because the true reward is unknown. The next reset makes a new environment; after a missed
deadline it happens with the next step, even in `same_step`. After k autoresets the seed of an
environment is `(first seed + k * 0x9E3779B9) mod 2**32`.

`mode="sync"` steps the environments in turn on the caller's thread. `mode="async"` steps them
concurrently: cheap environments on the caller's thread, blocking ones on their own threads or
processes, async ones on an event loop. With `send` and `recv` the caller takes results as they
become ready and never waits for the slowest. `mode="ray"` does the same on a cluster.
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
from gem_execution.vector.runner import Background, OnLoop, OnThread, Runner, close_here
from gem_execution.vector.slot import Autoreset, Slot, failed

__all__ = ["AsyncVectorEnv", "Autoreset", "Batch", "Ready", "VectorEnv"]

_SECONDS_TO_CLOSE = 5.0


class Batch(NamedTuple):
    """Result of `step`, with one entry per environment that was stepped."""

    observations: list[str]
    rewards: list[float]
    terminations: list[bool]
    truncations: list[bool]
    infos: list[dict[str, Any]]


class Ready(NamedTuple):
    """Result of `recv`: the environments that finished, in that order, and their results."""

    indices: list[int]
    observations: list[str]
    rewards: list[float]
    terminations: list[bool]
    truncations: list[bool]
    infos: list[dict[str, Any]]


class VectorEnv:
    """Step environments in turn on the caller's thread."""

    def __init__(
        self,
        makers: Sequence[Callable[[], Env]],
        *,
        autoreset: Autoreset | str = Autoreset.NEXT_STEP,
        env_ids: Sequence[str] | None = None,
    ) -> None:
        """`makers`: one function per environment; it is called again to replace a failed one."""
        if not makers:
            raise ConfigError("a vector needs at least one environment; got none")
        try:
            self.autoreset = Autoreset(autoreset)
        except ValueError:
            raise ConfigError(
                f"autoreset must be one of {[a.value for a in Autoreset]}; got {autoreset!r}"
            ) from None
        self._closed = False
        self._waiter = Waiter()
        self._slots: list[Slot] = []
        try:
            for make_env in makers:
                self._slots.append(Slot(make_env, self.autoreset))
        except BaseException:
            VectorEnv.close(self)
            raise
        self.env_ids = (
            list(env_ids)
            if env_ids is not None
            else [type(e.unwrapped).__name__ for e in self.envs if e is not None]
        )
        self.num_envs = len(self._slots)
        self._may_need_reset = True
        """Whether a step must check that every environment has a running episode."""

    @property
    def envs(self) -> list[Env | None]:
        """The environments; None for a failed one that is not replaced yet."""
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
        """Start an episode in every environment, or in those at `indices`.

        Returns (observations, infos). `seed`: an integer s gives s + i to environment i, a sequence
        has one seed per environment that is reset, None draws random seeds.
        """
        resets = self._resets(seed, options, indices)
        outcomes = self._advance({i: slot.begin(s, o) for i, slot, s, o in resets}, "reset")
        return [o[0] for o in outcomes], [o[4] for o in outcomes]

    def step(self, actions: Sequence[str] | Mapping[int, str]) -> Batch:
        """Step every environment, or those in a mapping; the results have the same order."""
        indices, texts = self._checked_actions(actions)
        slots = self._slots if type(indices) is range else [self._slots[i] for i in indices]
        flat: list[Any] = []  # all results in one list, so every fifth value is a column
        for slot, action in zip(slots, texts, strict=True):
            try:
                if slot.running:  # fast path of `slot.act`
                    result = slot.step(action)
                    if type(result) is not tuple:
                        result = self._waiter.result(result)
                    if result[2] or result[3]:
                        result = slot.ended_here(result) or self._waiter.result(
                            drive(slot.ended(result))
                        )
                else:
                    result = self._waiter.result(drive(slot.act(action)))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - a failure is data
                result = slot.run(slot.fail("step", error), self._waiter)
            flat += result
        if len(flat) != 5 * len(slots):  # possible if an environment overrides `step`
            raise ContractError(
                "step() must return (observation, reward, terminated, truncated, info)"
            )
        return Batch(flat[::5], flat[1::5], flat[2::5], flat[3::5], flat[4::5])

    def close(self) -> None:
        """Close all environments. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        for slot in self._slots:
            if slot.env is not None:
                close_here(slot.env, self._waiter.result)
        self._waiter.close()

    def __enter__(self) -> VectorEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _resets(
        self,
        seed: int | Sequence[int | None] | None,
        options: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None,
        indices: Sequence[int] | None,
    ) -> list[tuple[int, Slot, int, Mapping[str, Any] | None]]:
        self._check_open()
        chosen = (
            list(range(self.num_envs))
            if indices is None
            else [self._checked_index(i) for i in indices]
        )
        if len(set(chosen)) != len(chosen):
            raise ConfigError(f"reset() got the same index twice: {chosen}")
        if seed is None:
            seeds: list[int | None] = [None] * len(chosen)
        elif isinstance(seed, Sequence) and not isinstance(seed, (str, bytes)):
            seeds = list(seed)
        elif isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0:
            seeds = [seed + i for i in chosen]
        else:
            raise ConfigError(
                f"seed must be an integer of 0 or more, a sequence of them, or None; got {seed!r}"
            )
        each = (
            [options] * len(chosen)
            if options is None or isinstance(options, Mapping)
            else list(options)
        )
        if len(seeds) != len(chosen) or len(each) != len(chosen):
            raise ConfigError(
                f"reset() of {len(chosen)} environments got {len(seeds)} seeds "
                f"and {len(each)} options; pass one per environment"
            )
        return [
            (i, self._slots[i], secrets.randbits(32) if s is None else s, o)
            for i, s, o in zip(chosen, seeds, each, strict=True)
        ]

    def _check_open(self) -> None:
        if self._closed:
            raise ResetNeededError("the vector is closed; make a new one")

    def _checked_index(self, i: Any) -> int:
        if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < self.num_envs:
            raise ConfigError(f"{i!r} is not an index of a vector of {self.num_envs} environments")
        return i

    def _checked_actions(
        self, actions: Sequence[str] | Mapping[int, str]
    ) -> tuple[Sequence[int], Collection[str]]:
        """Return indices and actions; check all of them before the first step."""
        self._check_open()
        if isinstance(actions, Mapping):
            indices: Sequence[int] = [self._checked_index(i) for i in actions]
            texts: Collection[str] = actions.values()
        elif isinstance(actions, (str, bytes)) or not isinstance(actions, Sequence):
            raise ConfigError(
                f"step() got {type(actions).__name__}; expected a list of {self.num_envs} actions, "
                "or a mapping from index to action"
            )
        elif len(actions) != self.num_envs:
            raise ConfigError(
                f"step() got {len(actions)} actions for {self.num_envs} environments; "
                "pass a mapping from index to action to step some of them"
            )
        else:
            indices, texts = range(self.num_envs), actions
        if countOf(map(type, texts), str) != len(texts):
            for i, action in zip(indices, texts, strict=True):
                if not isinstance(action, str):
                    raise ActionTypeError(
                        f"the action for environment {i} must be a string; "
                        f"got {type(action).__name__} {action!r}"
                    )
        if self._may_need_reset:
            for i in indices:
                slot = self._slots[i]
                if not slot.running and (self.autoreset is Autoreset.DISABLED or not slot.started):
                    raise ResetNeededError(
                        f"environment {i} has no running episode: call reset(indices=[{i}]) first"
                    )
            self._may_need_reset = self.autoreset is Autoreset.DISABLED or not all(
                slot.started for slot in self._slots
            )
        return indices, texts

    def _advance(
        self, work: Mapping[int, Generator[Any, Any, StepResult]], where: str
    ) -> list[StepResult]:
        return [self._slots[i].run(steps, self._waiter) for i, steps in work.items()]


class AsyncVectorEnv(VectorEnv):
    """Step environments concurrently, each in the way its class declares."""

    def __init__(
        self,
        makers: Sequence[Callable[[], Env]],
        *,
        autoreset: Autoreset | str = Autoreset.NEXT_STEP,
        env_ids: Sequence[str] | None = None,
        deadline: float | None = None,
    ) -> None:
        """`deadline`: seconds for one step or reset of one environment.

        The first reset of an environment in its own process includes the start of the process.
        A call that misses its deadline fails. Its environment is abandoned, or killed if it runs in
        its own process.
        """
        if deadline is not None and not deadline > 0:
            raise ConfigError(f"deadline must be above 0, or None for no limit; got {deadline!r}")
        super().__init__(makers, autoreset=autoreset, env_ids=env_ids)
        self.deadline = deadline
        self._finished: SimpleQueue[tuple[int, int, StepResult]] = SimpleQueue()
        self._ready: dict[int, StepResult] = {}
        self._pending: dict[int, tuple[int, float, str]] = {}
        self._calls = 0
        self._background: Background | None = None
        self.on_closed: Callable[[], None] | None = None
        """Called after `close`, to close resources that belong to the vector."""
        self._runners = [self._runner_for(slot) for slot in self._slots]
        self._all_here = all(runner.here for runner in self._runners)

    @property
    def pending(self) -> list[int]:
        """The environments whose results `recv` has not returned yet."""
        return [*self._pending, *self._ready]

    def send(self, actions: Sequence[str] | Mapping[int, str]) -> None:
        """Start a step in every environment, or in those in a mapping; `recv` returns results."""
        indices, texts = self._checked_actions(actions)
        self._check_idle(indices)
        self._start(
            {i: self._slots[i].act(action) for i, action in zip(indices, texts, strict=True)},
            "step",
        )

    def send_reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        indices: Sequence[int] | None = None,
    ) -> None:
        """Start a reset with the arguments of `reset`; `recv` returns results, with reward 0."""
        resets = self._resets(seed, options, indices)
        self._check_idle(i for i, *_ in resets)
        self._start({i: slot.begin(s, o) for i, slot, s, o in resets}, "reset")

    def recv(self, at_least: int = 1, timeout: float | None = None) -> Ready:
        """Wait for `at_least` results, at most `timeout` seconds, and return all that are ready."""
        self._check_open()
        at_least = min(at_least, len(self._pending) + len(self._ready))
        end = None if timeout is None else time.monotonic() + timeout
        while self._collect(block=False):
            pass
        while len(self._ready) < at_least and self._collect(end=end):
            pass
        ready, self._ready = self._ready, {}
        return Ready(
            list(ready),
            *(list(column) for column in zip(*ready.values())) if ready else ([], [], [], [], []),
        )

    def step(self, actions: Sequence[str] | Mapping[int, str]) -> Batch:
        """Step every environment, or those in a mapping, and wait for all of them."""
        if self._all_here and not self._ready:
            return super().step(actions)
        indices, texts = self._checked_actions(actions)
        self._check_idle(indices)
        work = {i: self._slots[i].act(action) for i, action in zip(indices, texts, strict=True)}
        outcomes = self._advance(work, "step")
        return Batch(*map(list, zip(*outcomes))) if outcomes else Batch([], [], [], [], [])

    def close(self) -> None:
        """Close all environments without waiting for running calls. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        for slot in self._slots:
            slot.abandoned = True
        events = [
            runner.close(slot.env)
            for runner, slot in zip(self._runners, self._slots, strict=True)
            if slot.env is not None
        ]
        due = time.monotonic() + _SECONDS_TO_CLOSE
        for event in events:
            event.wait(max(0.0, due - time.monotonic()))
        for runner in self._runners:
            runner.end()
        if self._background is not None:
            self._background.end()
        if self.on_closed is not None:
            self.on_closed()

    def _advance(
        self, work: Mapping[int, Generator[Any, Any, StepResult]], where: str
    ) -> list[StepResult]:
        self._check_idle(work)
        self._start(work, where)
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
        for i, steps in here:  # last, while the others run
            self._ready[i] = self._slots[i].run(steps, self._waiter)

    def _report(self, i: int, call: int, outcome: StepResult) -> None:
        self._finished.put((i, call, outcome))

    def _collect(self, *, block: bool = True, end: float | None = None) -> bool:
        """Wait for the next result or missed deadline; return False if `end` comes first."""
        now = time.monotonic()
        due = min((d for _, d, _ in self._pending.values()), default=math.inf)
        wait = min(due, math.inf if end is None else end) - now
        try:
            if not block or wait <= 0:
                i, call, outcome = self._finished.get_nowait()
            else:
                i, call, outcome = self._finished.get(timeout=None if wait == math.inf else wait)
            # a result after its deadline is ignored
            if i in self._pending and self._pending[i][0] == call:
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
                self._miss_deadline(i, where)
        return end is None or now < end

    def _miss_deadline(self, i: int, where: str) -> None:
        slot = self._slots[i]
        self._slots[i], self._runners[i] = slot.renewed(), self._runners[i].abandon(slot.env)
        error = DeadlineError(f"{where} of {self.env_ids[i]} took over {self.deadline:g} s")
        self._ready[i] = failed(where, error)

    def _check_idle(self, indices: Iterable[int]) -> None:
        busy = [i for i in indices if i in self._pending or i in self._ready]
        if busy:
            raise ConfigError(
                f"environments {busy} have results that were not received; call recv() first"
            )

    def _runner_for(self, slot: Slot) -> Runner:
        env = cast(Env, slot.env)
        if env.is_async:
            self._background = self._background or Background(self.num_envs)
            slot.make_env = partial(_make_on, self._background, slot.make_env)
            env.run_on(self._background.threads.call)
            return OnLoop(self._background)
        env.run_on(_nowhere)  # only to find out whether any layer blocks
        blocks = env.is_async
        env.run_on(None)
        return OnThread() if blocks else Runner()


def _make_on(background: Background, make_env: Callable[[], Env]) -> Env:
    env = make_env()
    env.run_on(background.threads.call)  # for blocking layers of an async environment
    return env


async def _nowhere(*_: Any) -> Any:
    raise NotImplementedError
