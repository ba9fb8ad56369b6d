"""Environment pool: reuses environments across episodes, because some take seconds to make."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any

from gem_core.env.base import Env
from gem_core.env.ids import is_mixture
from gem_core.env.registry import make, spec
from gem_core.rollout.guard import NOT_CONTAINED, contained
from gem_core.rollout.step_threads import StepThreads
from gem_core.types import Failure, Task

__all__ = ["EnvPool", "close_unused"]

_SECONDS_TO_CLOSE = 5.0
_MAX_KINDS = 256  # of idle environments: tasks may all have different arguments
_log = logging.getLogger(__name__)


class EnvPool:
    """Lends environments to tasks and takes them back; closes those that failed."""

    def __init__(self, threads: StepThreads, make_env: Callable[[Task], Env] | None = None) -> None:
        self.threads = threads
        self._make = make_env or make_for_task
        self.lent = False
        """Whether the environments belong to the caller; the pool does not close those."""
        self._idle: dict[Any, list[Env]] = {}
        self._kept: dict[Any, Task] = {}  # keeps the objects alive whose ids are in the keys
        self._loop_bound: set[int] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._closers = StepThreads(sys.maxsize)
        """The threads that close environments: one that hangs takes no thread from a step."""

    def take(self, task: Task, *, fresh: bool = False) -> Env | Awaitable[Env]:
        """Return an idle environment for a task, or make one, on a thread if that may block."""
        idle = self._idle.get(_kind(task))
        if idle and not fresh:
            return idle.pop()
        if self._make is make_for_task and _may_block(task):
            return self._made_on_thread(task)
        return self._prepared(self._make(task))

    async def _made_on_thread(self, task: Task) -> Env:
        return self._prepared(await self.threads.call(self._make, task, late=close_unused))

    def _prepared(self, env: Env) -> Env:
        if env.is_async:
            self._loop_bound.add(id(env))
        env.run_on(self.threads.call)
        return env

    def give(self, task: Task, env: Env) -> None:
        """Return an environment to the pool after an episode that did not fail."""
        kind = _kind(task)
        self._kept[kind] = self._kept.pop(kind, task)  # moves the kind to the end
        self._idle.setdefault(kind, []).append(env)
        if len(self._kept) > _MAX_KINDS and not self.lent:
            for idle in self._idle.pop(oldest := next(iter(self._kept))):
                self.drop(idle)
            del self._kept[oldest]

    def drop(self, env: Env) -> None:
        """Close an environment without waiting for it."""
        self._loop_bound.discard(id(env))
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # an abandoned episode outlived its event loop
            _start_closing(env)
            return
        closing = asyncio.ensure_future(self._close(env))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def rest(self) -> None:
        """Close the environments that are bound to an ending event loop; keep the others."""
        bound: list[Env] = []
        for envs in self._idle.values():
            bound += [env for env in envs if self.lent or id(env) in self._loop_bound]
            envs[:] = [env for env in envs if not self.lent and id(env) not in self._loop_bound]
        self._loop_bound -= {id(env) for env in bound}
        await asyncio.gather(*(self._close(env) for env in bound))
        if self._closing:
            await asyncio.wait(set(self._closing), timeout=_SECONDS_TO_CLOSE)
        self.threads.close()
        self._closers.close()

    def close(self) -> None:
        """Close all idle environments, without an event loop; abandon those that hang."""
        idle, self._idle, self._kept = self._idle, {}, {}
        threads: list[threading.Thread] = []
        for env in (env for envs in idle.values() for env in envs):
            env.run_on(None)
            if env.execution == "inline" and not env.is_async:
                close_unused(env)
            else:
                threads.append(_start_closing(env))
        due = time.monotonic() + _SECONDS_TO_CLOSE
        for thread in threads:
            thread.join(max(0.0, due - time.monotonic()))
        self.threads.close()
        self._closers.close()

    async def _close(self, env: Env) -> None:
        if self.lent:
            env.run_on(None)
            return
        try:
            env.run_on(self._closers.call)
            closing: Any = env.close()
            if isawaitable(closing):
                await _wait(closing)
        except NOT_CONTAINED:
            raise
        except BaseException as error:  # noqa: BLE001 - the episode is over; only log it
            _log_failed_close(env, error)


def close_unused(env: Env) -> None:
    """Close an environment from a thread without an event loop; log a failure."""
    try:
        closing: Any = env.close()
        if isawaitable(closing):
            asyncio.run(_wait(closing))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the episodes are over; only log it
        _log_failed_close(env, error)


def _start_closing(env: Env) -> threading.Thread:
    thread = threading.Thread(target=close_unused, args=(env,), name="gem-close", daemon=True)
    thread.start()
    return thread


async def _wait(closing: Awaitable[None]) -> None:
    """Wait for a close; not `asyncio.wait_for`, which waits for one that ignores cancellation."""
    waiting = asyncio.ensure_future(contained(closing))
    done, _ = await asyncio.wait({waiting}, timeout=_SECONDS_TO_CLOSE)
    if not done:
        waiting.cancel()
        raise TimeoutError(f"it took over {_SECONDS_TO_CLOSE:g} s")
    waiting.result()


def _log_failed_close(env: Env, error: BaseException) -> None:
    failure = Failure.from_error(error, "close")
    _log.warning("closing %s failed: %s\n%s", type(env).__name__, failure, failure.traceback)


def make_for_task(task: Task) -> Env:
    """Make the registered environment of a task with its wrappers, in a process if required."""
    env = make(task.env_id, wrappers=task.wrappers, execution=task.execution, **task.env_kwargs)
    start_process = getattr(env.unwrapped, "start_process", None)
    if start_process is not None:
        start_process()  # now, so the start does not count toward the deadline of the first reset
    return env


def _may_block(task: Task) -> bool:
    if is_mixture(task.env_id) or task.execution == "process":
        return True
    return getattr(spec(task.env_id).load(), "execution", "thread") != "inline"


def _kind(task: Task) -> tuple[str, str, str, str]:
    """A key that is equal for tasks that can share an environment."""
    return (task.env_id, _identity(task.wrappers), _identity(task.env_kwargs), task.execution)


def _identity(value: Any) -> str:
    """Serialise arguments; objects that are not plain data compare by identity."""
    return json.dumps(value, sort_keys=True, default=lambda x: f"{type(x).__name__} at {id(x)}")
