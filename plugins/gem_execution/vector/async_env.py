"""Async vector environments: step environments concurrently.

    with make_vec("game:GuessTheNumber-v0-hard", 128, mode="async") as vec:
        vec.reset(seed=0)
        vec.send(actions)
        ready = vec.recv(at_least=32)  # waits for 32 of them; `ready.indices` says which are ready

Cheap environments run on the caller's thread, blocking ones on their own threads or processes, and
async ones on an event loop. With `send` and `recv` the caller takes results as they become ready
and never waits for the slowest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, cast

from gem_core.env.base import Env, StepResult
from gem_core.errors import ConfigError, DeadlineError
from gem_execution.vector.env import Batch, VectorEnv
from gem_execution.vector.runner import Background, OnLoop, OnThread, Runner
from gem_execution.vector.slot import Autoreset, Slot, failed

__all__ = ["AsyncVectorEnv", "Ready"]

_SECONDS_TO_CLOSE = 5.0


class Ready(NamedTuple):
    """Result of `recv`: the environments that finished, in that order, and their results."""

    indices: list[int]
    observations: list[str]
    rewards: list[float]
    terminations: list[bool]
    truncations: list[bool]
    infos: list[dict[str, Any]]


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
