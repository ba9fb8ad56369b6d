"""Runners of an async vector: they run an environment on a thread or on an event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator
from inspect import isawaitable
from queue import SimpleQueue
from typing import Any

from gem_core.env.base import Env, StepResult
from gem_core.env.maybe_async import awaited, drive
from gem_core.rollout.step_threads import StepThreads
from gem_execution.vector.slot import NOT_CONTAINED, Slot

__all__ = ["Background", "OnLoop", "OnThread", "Runner", "close_here"]

Steps = Generator[Any, Any, StepResult]
Report = Callable[[StepResult], None]

_log = logging.getLogger(__name__)


class Runner:
    """Base class, and the runner of cheap environments, which the caller steps on its thread."""

    here = True
    """Whether the caller steps the environment."""

    def start(self, slot: Slot, steps: Steps, report: Report) -> None:
        """Start a step or a reset; `report` receives its result on any thread."""
        raise NotImplementedError

    def abandon(self, env: Env | None) -> Runner:
        """Abandon a call that hangs and close its environment; return a new runner."""
        raise NotImplementedError

    def close(self, env: Env) -> threading.Event:
        """Close an environment and return an event to wait for."""
        done = threading.Event()
        close_here(env, _wait)
        done.set()
        return done

    def end(self) -> None:
        """Release the thread of the runner."""


class OnThread(Runner):
    """Run an environment on its own daemon thread, which is abandoned if a call hangs."""

    here = False

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._busy = False
        threading.Thread(target=self._run, name="gem-vector", daemon=True).start()

    def start(self, slot: Slot, steps: Steps, report: Report) -> None:
        def work() -> None:
            try:
                outcome: Any = drive(steps)
            except BaseException as error:  # noqa: BLE001 - sys.exit() must not lose the result
                outcome = slot.lost("step", error)
            self._busy = False
            report(outcome)

        self._busy = True
        self._work.put(work)

    def abandon(self, env: Env | None) -> Runner:
        self.end()
        if env is not None:
            OnThread().close_and_end(env)  # on another thread, because closing may hang, too
        return OnThread()

    def close(self, env: Env) -> threading.Event:
        return (OnThread() if self._busy else self).close_and_end(env)

    def close_and_end(self, env: Env) -> threading.Event:
        """Close an environment on this thread, then end the thread."""
        done = threading.Event()

        def work() -> None:
            close_here(env, _wait)
            done.set()

        self._work.put(work)
        self.end()
        return done

    def end(self) -> None:
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


class OnLoop(Runner):
    """Run an environment on the event loop that all async environments of a vector share."""

    here = False

    def __init__(self, background: Background) -> None:
        self._background = background
        self._task: Any = None

    def start(self, slot: Slot, steps: Steps, report: Report) -> None:
        async def work() -> None:
            try:
                outcome: Any = drive(steps)
                if isawaitable(outcome):
                    outcome = await outcome
            except BaseException as error:  # noqa: BLE001 - the caller waits for a result
                outcome = slot.lost("step", error)
            report(outcome)

        self._task = self._background.run(work())

    def abandon(self, env: Env | None) -> Runner:
        self._task.cancel()
        if env is not None:
            self._background.run(_close_async(env))
        return OnLoop(self._background)

    def close(self, env: Env) -> threading.Event:
        done = threading.Event()

        async def work() -> None:
            await _close_async(env)
            done.set()

        if self._task is not None:
            self._task.cancel()
        self._background.run(work())
        return done


class Background:
    """Event loop on a daemon thread, with threads for blocking calls of async environments."""

    def __init__(self, size: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.threads = StepThreads(size)
        self._thread = threading.Thread(target=self._run, name="gem-vector-loop", daemon=True)
        self._thread.start()

    def run(self, work: Any) -> Any:
        """Start a coroutine on the loop and return a future that can be cancelled."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def end(self) -> None:
        """Stop the loop."""
        self.loop.call_soon_threadsafe(self.loop.stop)

    def _run(self) -> None:
        self.loop.run_forever()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks))
        self.threads.close()
        self.loop.close()


def close_here(env: Env, wait: Callable[[Any], Any]) -> None:
    """Close an environment on this thread; log a failure. `wait` waits for an awaitable."""
    try:
        value: Any = env.close()
        if isawaitable(value):
            wait(value)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - a failed close must not end the program
        _log.warning("closing %s failed", type(env.unwrapped).__name__, exc_info=True)


def _wait(value: Any) -> None:
    asyncio.run(awaited(value))


async def _close_async(env: Env) -> None:
    try:
        value: Any = env.close()
        if isawaitable(value):
            await value
    except NOT_CONTAINED:
        raise
    except BaseException:  # noqa: BLE001 - a failed close must not end the program
        _log.warning("closing %s failed", type(env.unwrapped).__name__, exc_info=True)
