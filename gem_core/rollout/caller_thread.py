"""Caller's thread: runs a rollout on a second thread and generation on the caller's thread.

Some trainers' engines must be called from the trainer's own thread (CUDA graphs, collectives,
progress bars). While they generate, the rollout continues: async environments advance, and their
deadlines stay exact.

    caller = CallersThread()
    policy = BatchPolicy(lambda prompts, sampling: caller.call(generate, prompts, sampling))
    episodes = caller.run(lambda: rollout.run_batch(tasks), rollout.stop)

An endless rollout advances only while the trainer waits for episodes:

    caller.start(play_forever, rollout.stop)
    caller.serve_until(lambda: len(episodes) >= size)
    caller.stop()
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
        """Run the call and pass its result or exception on; Ctrl-C is raised here as well."""
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
    """The thread that calls `run` or `serve_until`; other threads run functions on it."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._open = True
        self._ended = False
        """Whether the work has ended and all its calls are served."""
        self._outcome: Future[Any] = Future()
        self._thread: threading.Thread | None = None
        self._stop: Callable[[], None] = lambda: None

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run `function(*args)` on the caller's thread and return its result."""
        if not self._open:
            raise PolicyError("the rollout was stopped")
        answer: Future[T] = Future()
        self._calls.put(_Call(function, args, answer))
        return answer.result()

    def post(self, function: Callable[..., Any], *args: Any) -> None:
        """Queue `function(*args)` for the caller's thread, which raises its exceptions."""
        self._calls.put(_Call(function, args, None))

    def run(self, work: Callable[[], T], stop: Callable[[], None]) -> T:
        """Return `work()`, run on a second thread that this one serves; Ctrl-C calls `stop`."""
        self.start(work, stop)
        result: T = self.wait()
        return result

    def start(self, work: Callable[[], Any], stop: Callable[[], None]) -> None:
        """Start `work()` on a second thread; its calls wait for `serve_until` or `wait`."""
        self._outcome, self._stop = Future(), stop
        self._open, self._ended = True, False
        self._thread = threading.Thread(
            target=self._work, args=(work, self._outcome), name="gem-rollout", daemon=True
        )
        self._thread.start()

    def serve_until(self, condition: Callable[[], bool]) -> None:
        """Serve the work until `condition()` is true.

        Raises the work's exception, or `PolicyError` if the work ended or was stopped earlier.
        """
        self._serve(condition)
        if self._ended and not condition():
            self._outcome.result()
            raise PolicyError("the rollout has ended; no more episodes will come")

    def wait(self) -> Any:
        """Serve the work until it ends, and return its result."""
        self._serve(lambda: False)
        return self._outcome.result()

    def stop(self) -> None:
        """Stop the work, reject its calls, and drop its result."""
        if self._thread is None or self._ended:
            return
        self._open, self._ended = False, True
        self._outcome = Future()
        self._outcome.set_exception(PolicyError("the rollout was stopped"))
        self._stop()
        threading.Thread(target=self._reject, name="gem-reject", daemon=True).start()
        self._thread.join(_SECONDS_TO_STOP)

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
            self.stop()
            raise

    def _reject(self) -> None:
        while (call := self._calls.get()) is not None:
            if call.answer is not None:
                call.answer.set_exception(PolicyError("the rollout was stopped"))
