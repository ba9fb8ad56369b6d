"""Caller: plays a rollout on a thread of its own, and lends it the caller's thread for the model's generation.

Some trainers' engines must be called from the thread the trainer runs on (CUDA graphs, collectives, progress bars). The rollout
itself should not stand still meanwhile: environments that are awaited go on, and their deadlines mean what they say.

    caller = CallersThread()
    policy = BatchPolicy(lambda prompts, sampling: caller.call(generate, prompts, sampling))
    episodes = caller.run(lambda: rollout.run_batch(tasks), rollout.stop)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from gem_core.errors import PolicyError

__all__ = ["CallersThread"]

T = TypeVar("T")
_SECONDS_TO_STOP = 10.0


class _Asked:
    """One call, and the answer somebody waits for."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.function, self.args = function, args
        self.result: Any = None
        self.error: BaseException | None = None
        self.answered = threading.Event()

    def answer(self) -> None:
        """Runs the call; what it raises is raised again where it was asked for."""
        try:
            self.result = self.function(*self.args)
        except Exception as error:  # noqa: BLE001 - raised again on the thread that asked
            self.error = error
        except BaseException as error:  # Ctrl-C, on the caller's thread: both have to know
            self.error = error
            raise
        finally:
            self.answered.set()


class CallersThread:
    """The thread that calls `run`, for others to run functions on."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[_Asked | None] = SimpleQueue()
        self._open = True

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """`function(*args)` on the caller's thread; waits for the answer."""
        asked = _Asked(function, args)
        if self._open:
            self._asked.put(asked)
            asked.answered.wait()
        else:
            asked.error = PolicyError("the rollout was stopped")
        if asked.error is not None:
            raise asked.error
        return asked.result  # type: ignore[no-any-return]

    def run(self, work: Callable[[], T], stop: Callable[[], None]) -> T:
        """`work()` on a thread of its own, while this one does what it is asked to. Ctrl-C calls `stop` and is raised."""
        found: list[T] = []
        errors: list[BaseException] = []

        def elsewhere() -> None:
            try:
                found.append(work())
            except BaseException as error:  # noqa: BLE001 - raised again on the caller's thread
                errors.append(error)
            self._asked.put(None)

        thread = threading.Thread(target=elsewhere, name="gem-rollout", daemon=True)
        self._open = True
        thread.start()
        try:
            while (asked := self._asked.get()) is not None:
                asked.answer()
        except BaseException:
            self._open = False
            stop()
            self._refuse_the_rest(thread)
            raise
        if errors:
            raise errors[0]
        return found[0]

    def _refuse_the_rest(self, thread: threading.Thread) -> None:
        """Lets those who asked go, so that the rollout can end in order."""
        refused = threading.Thread(target=self._refuse, name="gem-refuse", daemon=True)
        refused.start()
        thread.join(_SECONDS_TO_STOP)

    def _refuse(self) -> None:
        while (asked := self._asked.get()) is not None:
            asked.error = PolicyError("the rollout was stopped")
            asked.answered.set()
