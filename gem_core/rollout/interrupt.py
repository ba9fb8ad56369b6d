"""Interrupts: run a coroutine from synchronous code and end it cleanly on Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from gem_core.types import Episode

__all__ = ["SECONDS_TO_CANCEL", "Interrupted", "run_sync"]

SECONDS_TO_CANCEL = 5.0
"""How long a rollout waits for calls that ignore their cancellation, before it abandons them."""

T = TypeVar("T")


class Interrupted(KeyboardInterrupt):
    """Raised on Ctrl-C. `episodes` has one episode per task; unfinished ones are failed."""

    def __init__(self, episodes: Sequence[Episode]) -> None:
        finished = sum(not episode.failed for episode in episodes)
        super().__init__(f"interrupted with {finished} of {len(episodes)} episodes finished")
        self.episodes = list(episodes)


def run_sync(work: Coroutine[Any, Any, T], on_interrupt: Callable[[], None]) -> T:
    """Run a coroutine to its end; on a separate thread if this one runs an event loop.

    The first Ctrl-C calls `on_interrupt`, which should end the coroutine; the second raises.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(_with_interrupt(work, on_interrupt))
    results: list[T] = []
    errors: list[BaseException] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def run_in_loop() -> T:
        loops.append(asyncio.get_running_loop())
        return await work

    def run_on_thread() -> None:
        try:
            results.append(_run(run_in_loop()))
        except BaseException as error:  # noqa: BLE001 - raised again on the caller's thread
            errors.append(error)
        done.set()

    # Not Thread.join: after Ctrl-C interrupts it, it takes the thread for finished.
    done = threading.Event()
    threading.Thread(target=run_on_thread, name="gem-rollout", daemon=True).start()
    try:
        done.wait()
    except KeyboardInterrupt:
        if not done.is_set() and loops:
            loops[0].call_soon_threadsafe(on_interrupt)
        done.wait()
    if errors:
        raise errors[0]
    return results[0]


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine; not `asyncio.run`, which waits for tasks that ignore their cancellation."""
    loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(work)
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=SECONDS_TO_CANCEL))
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()


async def _with_interrupt(work: Coroutine[Any, Any, T], on_interrupt: Callable[[], None]) -> T:
    pressed = 0

    def on_signal(*_: Any) -> None:
        nonlocal pressed
        pressed += 1
        if pressed > 1:
            raise KeyboardInterrupt
        loop.call_soon_threadsafe(on_interrupt)

    loop = asyncio.get_running_loop()
    try:  # not loop.add_signal_handler: a loop that an environment blocks would not run it
        previous = signal.signal(signal.SIGINT, on_signal)
    except ValueError:  # not the main thread
        return await work
    try:
        return await work
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler if previous is None else previous)
