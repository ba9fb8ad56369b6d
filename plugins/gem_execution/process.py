"""ProcessEnv: an environment in a process of its own, for those that may hang for good or take the interpreter down.

The process is spawned at the first reset and answers one call at a time over a pipe. A step that overruns its deadline, and one
that is pending when the environment is closed, is ended by killing the process with all that it started; a process that dies
costs its episode, as `EnvDiedError`. The process ends by itself as soon as the program that made it is gone.

Only the environment lives there; wrappers stay outside. What is sent to the process (entry point and arguments) and what comes
back (observations, infos) must be picklable; a program that uses it needs `if __name__ == "__main__":`, as with every spawned
process.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import signal
import threading
import weakref
from collections.abc import Mapping
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, cast

from gem_core.env.base import Env, ResetResult, StepResult
from gem_core.env.maybe_async import Waiter
from gem_core.errors import ConfigError, ContractError, DeadlineError, EnvDiedError, EnvError
from gem_core.plugins.entry_points import EntryPoint
from gem_execution.remote import RemoteEnv, as_data, build, described, from_data, perform

__all__ = ["ProcessEnv"]

_SECONDS_TO_CLOSE = 2.0
_SECONDS_TO_ANSWER = 30.0
"""For calls that no engine's deadline stands behind, such as `sample_action`."""


class ProcessEnv(RemoteEnv):
    """Stands for an environment that lives in another process."""

    execution = "thread"  # it waits for a pipe

    def __init__(
        self,
        entry_point: EntryPoint,
        kwargs: Mapping[str, Any] | None = None,
        *,
        deadline: float | None = None,
    ) -> None:
        """`entry_point` as in `register`: a callable, or 'module:name'. `deadline`: seconds for one reset or step, then the
        process is killed; engines and vectors bring their own."""
        super().__init__(entry_point, kwargs)
        if deadline is not None and not deadline > 0:
            raise ConfigError(
                f"deadline must be above 0, or None for no limit; given: {deadline!r}"
            )
        self.deadline = deadline
        try:
            self._recipe = pickle.dumps((entry_point, self.kwargs))
        except Exception as error:
            raise ConfigError(
                f"{described(entry_point)} cannot be sent to a process of its own: {type(error).__name__}: {error}. Define it, "
                "and what it is made with, at the top of a module that can be imported"
            ) from error
        self._link: _Link | None = None

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        return cast(
            ResetResult, self._linked().ask("reset", (self._seed, dict(options)), self.deadline)
        )

    def on_step(self, action: str) -> StepResult:
        return cast(StepResult, self._linked().ask("step", (action,), self.deadline))

    def on_close(self) -> None:
        if self._link is not None:
            self._link.close()

    def ask(self, what: str, *args: Any) -> Any:
        return self._linked().ask(what, args, _SECONDS_TO_ANSWER)

    @property
    def pid(self) -> int | None:
        """The process, once there is one."""
        return self._link.process.pid if self._link is not None else None

    def _linked(self) -> _Link:
        if self._link is None or self._link.over:
            self._link = _Link(self._recipe, described(self.entry_point))
        return self._link


class _Link:
    """The pipe to one process. `ask` blocks; `close` may be called from another thread meanwhile."""

    def __init__(self, recipe: bytes, name: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._name = name
        self.busy = self.over = False
        self.process = context.Process(target=_serve, args=(theirs, recipe), name=f"gem-env {name}")
        self.process.start()
        theirs.close()
        _living.add(self)

    def ask(self, what: str, args: tuple[Any, ...], seconds: float | None) -> Any:
        self.busy = True
        try:
            self._pipe.send((what, args))
            if seconds is not None and not self._pipe.poll(seconds):
                self.kill()
                raise DeadlineError(
                    f"{what} of {self._name} took over {seconds:g} s; its process was killed"
                )
            done, value = self._pipe.recv()
        except (EOFError, OSError) as error:
            if isinstance(error, DeadlineError):
                raise
            self.kill()
            raise EnvDiedError(
                f"the process of {self._name} ended during {what}, with {self._last_words()}"
            ) from None
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise EnvError(
                f"{what} of {self._name} was given something that cannot be sent to its process: {error}"
            ) from error
        finally:
            self.busy = False
        if done:
            return value
        raise from_data(value)

    def close(self) -> None:
        """Asks the process to end, or kills it where it is busy or does not listen."""
        if not self.over and not self.busy:
            try:
                self._pipe.send(("close", ()))
                self._pipe.poll(_SECONDS_TO_CLOSE)
            except OSError:
                self.over = True  # it is gone already
        self.kill()

    def kill(self) -> None:
        """Ends the process, and what it started, at once."""
        self.over = True
        _kill(self.process)
        self.process.join(_SECONDS_TO_CLOSE)
        _living.discard(self)
        if not self.busy:
            self._pipe.close()

    def _last_words(self) -> str:
        code = self.process.exitcode
        if code is None:
            return "an unknown exit code"
        if code < 0:
            return f"signal {-code} ({signal.Signals(-code).name})"
        return f"exit code {code}"


_living: weakref.WeakSet[_Link] = weakref.WeakSet()


def _kill(process: Any) -> None:
    if process.pid is None:
        return
    try:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)  # its group: what it started goes with it
    except ProcessLookupError:
        pass  # it has not come to lead a group yet, or is gone
    except PermissionError:  # on some systems, a group of nothing but zombies
        pass
    process.kill()


@atexit.register
def _kill_all() -> None:
    # Registered behind multiprocessing's own handler, hence called before it: that one would wait for each process to end.
    for link in list(_living):
        link.over = True
        _kill(link.process)


# In the other process.


def _serve(pipe: Connection, recipe: bytes) -> None:
    if hasattr(os, "setsid"):
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that made us
    asked: SimpleQueue[tuple[str, tuple[Any, ...]]] = SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, asked), daemon=True).start()
    entry_point, kwargs = pickle.loads(recipe)
    waiter = Waiter()
    env: Env | None = None

    while True:
        what, args = asked.get()
        try:
            if env is None:
                if what == "close":
                    answer: tuple[bool, Any] = (True, None)
                else:
                    env = build(entry_point, kwargs)
            if env is not None:
                answer = (True, waiter.result(perform(env, what, args)))
        except Exception as error:  # noqa: BLE001 - raised again in the other process
            answer = (False, as_data(error))
        try:
            pipe.send(answer)
        except (OSError, EOFError):
            _leave()
        except Exception as error:  # noqa: BLE001 - what the environment returned cannot be pickled
            name = described(entry_point)
            pipe.send(
                (
                    False,
                    as_data(
                        ContractError(
                            f"{what}() of {name} returned something that cannot leave its process: {error}"
                        )
                    ),
                )
            )
        if what == "close":
            _leave()


def _listen(pipe: Connection, asked: SimpleQueue[tuple[str, tuple[Any, ...]]]) -> None:
    """Reads on a thread, so that the end of the pipe is noticed in the middle of a step."""
    while True:
        try:
            asked.put(pipe.recv())
        except (EOFError, OSError):
            _leave()


def _leave() -> None:
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)  # ourselves, and what the environment started
    os._exit(0)
