"""Guard: runs an episode's calls within their deadlines and turns errors into `EpisodeFailed`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any

from gem_core.errors import ContractError, EnvDiedError
from gem_core.types import Failure, StopReason

__all__ = ["NOT_CONTAINED", "EpisodeFailed", "Guard", "contained"]

NOT_CONTAINED = (KeyboardInterrupt, GeneratorExit, asyncio.CancelledError)
"""The exceptions that end a rollout: Ctrl-C and cancellation. All others fail one episode."""


class EpisodeFailed(Exception):
    """Ends an episode, with the stop reason and the failure that go into its record."""

    def __init__(self, stop: StopReason, failure: Failure) -> None:
        super().__init__(str(failure))
        self.stop, self.failure = stop, failure

    @classmethod
    def from_error(cls, stop: StopReason, error: BaseException, where: str) -> EpisodeFailed:
        """Convert an exception, with its traceback as text."""
        return cls(stop, Failure.from_error(error, where))


class Guard:
    """Calls the environment and the policy of one episode. The episode's clock starts here."""

    def __init__(self, episode_deadline: float | None) -> None:
        self._episode_deadline = episode_deadline
        self._began = time.monotonic()

    @property
    def elapsed(self) -> float:
        """The seconds since the episode began."""
        return time.monotonic() - self._began

    async def call(
        self, where: str, seconds: float | None, call: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Return the (awaited) result of `call`; its error or deadline raises `EpisodeFailed`."""
        generating = where == "generate"
        overdue = StopReason.POLICY_DEADLINE if generating else StopReason.ENV_DEADLINE
        if self._episode_deadline is not None:
            left = self._episode_deadline - self.elapsed
            if seconds is None or left < seconds:
                seconds, overdue = left, StopReason.EPISODE_DEADLINE
            if left <= 0:
                message = f"the episode took over {self._episode_deadline} s"
                raise EpisodeFailed(overdue, Failure("DeadlineError", message, where))
        try:
            value = call(*args, **kwargs)
            # The type test covers the common case and is 20 times faster than isawaitable.
            if type(value) is tuple or not isawaitable(value):
                return value
            if seconds is None:
                return await contained(value)
            waiting = asyncio.ensure_future(contained(value))
            try:
                done, _ = await asyncio.wait({waiting}, timeout=seconds)
            finally:
                waiting.cancel()  # does nothing if it is done
            if done:
                return waiting.result()
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and _current_task_is_cancelled():
                raise
            if generating and not isinstance(error, EnvDiedError):
                stop = StopReason.POLICY_ERROR
            elif isinstance(error, ContractError):
                stop = StopReason.ENV_INVALID
            else:
                stop = StopReason.ENV_ERROR
            raise EpisodeFailed.from_error(stop, error, where) from error
        message = f"{where} took over {seconds:.3g} s"
        raise EpisodeFailed(overdue, Failure("DeadlineError", message, where))


async def contained(value: Awaitable[Any]) -> Any:
    """Await `value`. A SystemExit must fail the call; asyncio would let it end the program."""
    try:
        return await value
    except (Exception, *NOT_CONTAINED):
        raise
    except BaseException as error:
        failure = Failure.from_error(error, "")
        raise RuntimeError(f"{failure.kind} was raised: {failure.message}") from error


def _current_task_is_cancelled() -> bool:
    """Whether this task is cancelled, not one that it awaits. Python 3.10 cannot tell: True."""
    task: Any = asyncio.current_task()
    return not hasattr(task, "cancelling") or task.cancelling() > 0
