"""Step threads: run blocking steps, so a slow environment delays only its own episode.

Not `concurrent.futures`: Python joins its threads at exit, so a hanging step would block the exit.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from gem_core.types import Failure

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
    """Up to `size` daemon threads, started on demand.

    A cancelled call abandons its thread, which is replaced; its late result is dropped or passed
    to `late`.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.abandoned = 0
        """How many calls were cancelled while they ran."""
        self._idle: list[_Worker] = []
        self._running = 0
        self._queue: list[asyncio.Future[None]] = []

    async def call(self, function: Callable[..., Any], *args: Any, late: Late | None = None) -> Any:
        """Run `function(*args)` on a thread; `late` gets a late result, also on a thread."""
        loop = asyncio.get_running_loop()
        while self._running >= self.size:
            turn: asyncio.Future[None] = loop.create_future()
            self._queue.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # its turn had come: pass it on
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
                worker.work.put(None)  # it ends after its current call
                self._free()
                raise
            if future.exception() is None:  # the result arrived in the same moment
                _pass_late(late, future.result())
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
        """End the idle threads."""
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
            except BaseException as caught:  # noqa: BLE001 - raised by `call`
                result, error = None, caught
            try:
                loop.call_soon_threadsafe(_settle, future, result, error, late)
            except RuntimeError:  # the loop is closed
                if error is None:
                    _pass_late(late, result)
                return
            del item, future, function, args, late, result, error


def _settle(
    future: asyncio.Future[Any], result: Any, error: BaseException | None, late: Late | None
) -> None:
    if future.done():
        if error is None:
            _pass_late(late, result)
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, Exception) and not isinstance(error, StopIteration):
        future.set_exception(error)
    else:  # SystemExit, KeyboardInterrupt and StopIteration must not end the event loop
        failure = Failure.from_error(error, "step")
        message = f"{failure.kind} was raised on a step's thread: {failure.message}"
        future.set_exception(RuntimeError(message))


def _pass_late(late: Late | None, result: Any) -> None:
    if late is not None:
        threading.Thread(target=late, args=(result,), name="gem-late", daemon=True).start()
