"""Caller's thread: plays a rollout on a thread of its own, and lends it the caller's thread for generation.

Some trainers' engines must be called from the thread the trainer runs on (CUDA graphs, collectives, progress bars). Meanwhile
the rollout goes on: environments that are awaited advance, and their deadlines stay exact.

    caller = CallersThread()
    policy = BatchPolicy(lambda prompts, sampling: caller.call(generate, prompts, sampling))
    episodes = caller.run(lambda: rollout.run_batch(tasks), rollout.stop)

A rollout without end advances only while the trainer waits for episodes:

    caller.start(play_forever, rollout.stop)
    caller.serve_until(lambda: len(episodes) >= size)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from gem_core.errors import PolicyError

__all__ = ["CallersThread"]

T = TypeVar("T")
_SECONDS_TO_STOP = 10.0


class _Call(NamedTuple):
    function: Callable[..., Any]
    args: tuple[Any, ...]
    answer: Future[Any] | None
    """None: no thread waits for the result."""

    def serve(self) -> None:
        """Run the call. The thread that waits for it gets what it raises; Ctrl-C is raised here as well."""
        try:
            result = self.function(*self.args)
        except BaseException as error:
            if self.answer is not None:
                self.answer.set_exception(error)
            if self.answer is None or not isinstance(error, Exception):
                raise
        else:
            if self.answer is not None:
                self.answer.set_result(result)


class CallersThread:
    """The thread that calls `run` or `serve_until`, for another thread to run functions on."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._open = True
        self._ended = False
        """Whether the work ended and everything it asked for before was served."""
        self._outcome: Future[Any] = Future()
        self._thread: threading.Thread | None = None
        self._stop: Callable[[], None] = lambda: None

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run `function(*args)` on the caller's thread and wait for its result."""
        if not self._open:
            raise PolicyError("the rollout was stopped")
        answer: Future[T] = Future()
        self._calls.put(_Call(function, args, answer))
        return answer.result()

    def post(self, function: Callable[..., Any], *args: Any) -> None:
        """Run `function(*args)` on the caller's thread some time later; what it raises is raised there."""
        self._calls.put(_Call(function, args, None))

    def run(self, work: Callable[[], T], stop: Callable[[], None]) -> T:
        """Return `work()`, run on a thread of its own while this one serves it. Ctrl-C calls `stop` and is raised."""
        self.start(work, stop)
        result: T = self.wait()
        return result

    def start(self, work: Callable[[], Any], stop: Callable[[], None]) -> None:
        """Start `work()` on a thread of its own and return. What it asks of this thread waits for `serve_until` or `wait`."""
        self._outcome, self._stop = Future(), stop
        self._open, self._ended = True, False
        self._thread = threading.Thread(
            target=self._work, args=(work, self._outcome), name="gem-rollout", daemon=True
        )
        self._thread.start()

    def serve_until(self, condition: Callable[[], bool]) -> None:
        """Serve the work until `condition()` is true, then let it wait. Raises what the work raised, and `PolicyError` if it
        ended or was stopped before."""
        self._serve(condition)
        if self._ended and not condition():
            self._outcome.result()
            raise PolicyError("the rollout has ended; no more episodes will come")

    def wait(self) -> Any:
        """Serve the work until it ends, and return its result."""
        self._serve(lambda: False)
        return self._outcome.result()

    def _work(self, work: Callable[[], Any], outcome: Future[Any]) -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again on the caller's thread
            outcome.set_exception(error)
        self._calls.put(None)

    def _serve(self, condition: Callable[[], bool]) -> None:
        try:
            while not self._ended and not condition():
                call = self._calls.get()
                if call is None:
                    self._ended = True
                else:
                    call.serve()
        except BaseException:
            self._abandon()
            raise

    def _abandon(self) -> None:
        """Stop the work and reject its calls, which lets it end in order; what it returns or raises is dropped."""
        self._open, self._ended = False, True
        abandoned, self._outcome = self._thread, Future()
        self._outcome.set_exception(PolicyError("the rollout was stopped"))
        self._stop()
        threading.Thread(target=self._reject, name="gem-reject", daemon=True).start()
        if abandoned is not None:
            abandoned.join(_SECONDS_TO_STOP)

    def _reject(self) -> None:
        while (call := self._calls.get()) is not None:
            if call.answer is not None:
                call.answer.set_exception(PolicyError("the rollout was stopped"))
