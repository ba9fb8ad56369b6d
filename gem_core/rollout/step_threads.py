"""Threads: where blocking steps run, so that a slow environment holds up nothing but its own episode.

Not `concurrent.futures`: its threads are joined at exit, so one hanging step would keep the program from ending.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

__all__ = ["StepThreads"]

Late = Callable[[Any], None]
Work = tuple[
    asyncio.AbstractEventLoop,
    "asyncio.Future[Any]",
    Callable[..., Any],
    tuple[Any, ...],
    "Late | None",
]


class StepThreads:
    """Daemon threads, as many as are needed and `size` at most. A call whose waiter gave up leaves its thread behind: the
    thread is replaced and counted, its late result is dropped, or given to `late` where there is one."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.abandoned = 0
        """Calls nobody waits for any more."""
        self._idle: list[_Worker] = []
        self._running = 0
        self._queue: list[asyncio.Future[None]] = []

    async def call(self, function: Callable[..., Any], *args: Any, late: Late | None = None) -> Any:
        """`function(*args)` on a thread of its own. `late` is given, on a thread too, a result that nobody waits for any more."""
        loop = asyncio.get_running_loop()
        while self._running >= self.size:
            turn: asyncio.Future[None] = loop.create_future()
            self._queue.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # its turn had come: the next one in the queue takes it
                    self._wake()
                raise
        worker = self._idle.pop() if self._idle else _Worker()
        self._running += 1
        future: asyncio.Future[Any] = loop.create_future()
        worker.work.put((loop, future, function, args, late))
        try:
            result = await future
        except asyncio.CancelledError:
            if not future.done() or future.cancelled():
                self.abandoned += 1
                worker.work.put(None)  # it ends once the call it is busy with does
                self._free()
                raise
            if future.exception() is None:  # it came, and nobody takes it
                _give_late(late, future.result())
            self._idle.append(worker)
            self._free()
            raise
        except BaseException:
            self._idle.append(worker)
            self._free()
            raise
        self._idle.append(worker)
        self._free()
        return result

    def close(self) -> None:
        """Lets idle threads end."""
        while self._idle:
            self._idle.pop().work.put(None)

    def _free(self) -> None:
        self._running -= 1
        self._wake()

    def _wake(self) -> None:
        while self._queue:
            turn = self._queue.pop(0)
            if not turn.done():
                turn.set_result(None)
                break


class _Worker:
    def __init__(self) -> None:
        self.work: SimpleQueue[Work | None] = SimpleQueue()
        threading.Thread(target=self._run, name="gem-step", daemon=True).start()

    def _run(self) -> None:
        while (item := self.work.get()) is not None:
            loop, future, function, args, late = item
            try:
                result, error = function(*args), None
            except BaseException as caught:  # noqa: BLE001 - handed to the waiter
                result, error = None, caught
            try:
                loop.call_soon_threadsafe(_settle, future, result, error, late)
            except RuntimeError:  # the loop is closed: nobody waits
                if error is None:
                    _give_late(late, result)
                return
            del item, future, function, args, late, result, error


def _settle(
    future: asyncio.Future[Any], result: Any, error: BaseException | None, late: Late | None
) -> None:
    if future.done():
        if error is None:
            _give_late(late, result)
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, Exception) and not isinstance(error, StopIteration):
        future.set_exception(error)
    else:  # SystemExit, KeyboardInterrupt or StopIteration out of a step must end the step, not the event loop
        future.set_exception(
            RuntimeError(f"{type(error).__name__} was raised on a step's thread: {error}")
        )


def _give_late(late: Late | None, result: Any) -> None:
    if late is not None:
        threading.Thread(target=late, args=(result,), name="gem-late", daemon=True).start()
