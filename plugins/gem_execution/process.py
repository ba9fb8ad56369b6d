"""ProcessEnv: an environment in its own process, for environments that may hang or crash.

The engine spawns the process when it makes the environment; otherwise, the first reset does. The
process answers one call at a time over a pipe. `ProcessEnv` kills
the process and its children when a step exceeds its deadline, and when `close` is called during a
step. If the process dies, the call raises `EnvDiedError`. The process exits when its parent does.

Wrappers stay in the parent process. The entry point, its arguments, observations and infos must be
picklable. The main program needs `if __name__ == "__main__":`, as for every spawned process.
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
_SECONDS_TO_START = 60.0
_SECONDS_TO_ANSWER = 30.0
"""Timeout of calls without a deadline, such as `sample_action`."""


class ProcessEnv(RemoteEnv):
    """Proxy for an environment in another process."""

    execution = "thread"  # it blocks on a pipe

    def __init__(
        self,
        entry_point: EntryPoint,
        kwargs: Mapping[str, Any] | None = None,
        *,
        deadline: float | None = None,
    ) -> None:
        """Pickle the entry point; the process starts with `start_process` or the first reset.

        `entry_point`: a callable or 'module:name', as in `register`. `deadline`: seconds for one
        reset or step, after which the process is killed. Engines and vectors have their own.
        """
        super().__init__(entry_point, kwargs)
        if deadline is not None and not deadline > 0:
            raise ConfigError(f"deadline must be above 0, or None for no limit; got {deadline!r}")
        self.deadline = deadline
        try:
            self._pickled = pickle.dumps((entry_point, self.kwargs))
        except Exception as error:
            raise ConfigError(
                f"cannot pickle {described(entry_point)}: {type(error).__name__}: {error}. "
                "Define it and its arguments at the top level of an importable module"
            ) from error
        self._link: _Link | None = None

    def start_process(self) -> None:
        """Start the process and make the environment in it; blocks until both are done."""
        try:
            self._linked().ask("start", (), _SECONDS_TO_START)
        except BaseException:
            self.on_close()
            raise

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        return cast(
            ResetResult, self._linked().ask("reset", (self._seed, dict(options)), self.deadline)
        )

    def on_step(self, action: str) -> StepResult:
        return cast(StepResult, self._linked().ask("step", (action,), self.deadline))

    def on_close(self) -> None:
        if self._link is not None:
            self._link.close()

    def ask(self, method: str, *args: Any) -> Any:
        return self._linked().ask(method, args, _SECONDS_TO_ANSWER)

    @property
    def pid(self) -> int | None:
        """Id of the process; None before it starts."""
        return self._link.process.pid if self._link is not None else None

    def _linked(self) -> _Link:
        if self._link is None or self._link.closed:
            self._link = _Link(self._pickled, described(self.entry_point))
        return self._link


class _Link:
    """The pipe to one process. `ask` blocks; another thread may call `close` meanwhile."""

    def __init__(self, pickled: bytes, name: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, child_pipe = context.Pipe()
        self._name = name
        self.busy = self.closed = False
        self.process = context.Process(
            target=_serve, args=(child_pipe, pickled), name=f"gem-env {name}"
        )
        self.process.start()
        child_pipe.close()
        _open_links.add(self)

    def ask(self, method: str, args: tuple[Any, ...], seconds: float | None) -> Any:
        self.busy = True
        try:
            self._pipe.send((method, args))
            if seconds is not None and not self._pipe.poll(seconds):
                self.kill()
                raise DeadlineError(
                    f"{method} of {self._name} took over {seconds:g} s; its process was killed"
                )
            done, value = self._pipe.recv()
        except (EOFError, OSError) as error:
            if isinstance(error, DeadlineError):
                raise
            self.kill()
            raise EnvDiedError(
                f"the process of {self._name} ended during {method} with {self._exit_reason()}"
            ) from None
        except (KeyboardInterrupt, SystemExit):
            self.kill()  # otherwise the next call would read the answer to this one
            raise
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise EnvError(
                f"cannot pickle an argument of {method} for the process of {self._name}: {error}"
            ) from error
        finally:
            self.busy = False
        if done:
            return value
        raise from_data(value)

    def close(self) -> None:
        """Ask the process to exit, or kill it if it is busy or does not answer."""
        if not self.closed and not self.busy:
            try:
                self._pipe.send(("close", ()))
                self._pipe.poll(_SECONDS_TO_CLOSE)
            except OSError:
                self.closed = True  # the process is gone already
        self.kill()

    def kill(self) -> None:
        """Kill the process and its children."""
        self.closed = True
        _kill(self.process)
        self.process.join(_SECONDS_TO_CLOSE)
        _open_links.discard(self)
        if not self.busy:
            self._pipe.close()

    def _exit_reason(self) -> str:
        code = self.process.exitcode
        if code is None:
            return "an unknown exit code"
        if code < 0:
            return f"signal {-code} ({signal.Signals(-code).name})"
        return f"exit code {code}"


_open_links: weakref.WeakSet[_Link] = weakref.WeakSet()


def _kill(process: Any) -> None:
    if process.pid is None:
        return
    try:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)  # its group includes its children
    except ProcessLookupError:
        pass  # it does not lead a group yet, or is gone
    except PermissionError:  # on some systems, a group that only has zombies
        pass
    process.kill()


@atexit.register
def _kill_all() -> None:
    # atexit runs this before multiprocessing's handler, which would wait for each process
    for link in list(_open_links):
        link.closed = True
        _kill(link.process)


# In the other process.


def _serve(pipe: Connection, pickled: bytes) -> None:
    if hasattr(os, "setsid"):
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    calls: SimpleQueue[tuple[str, tuple[Any, ...]]] = SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, calls), daemon=True).start()
    entry_point, kwargs = pickle.loads(pickled)
    waiter = Waiter()
    env: Env | None = None

    while True:
        method, args = calls.get()
        try:
            if env is None:
                if method == "close":
                    answer: tuple[bool, Any] = (True, None)
                else:
                    env = build(entry_point, kwargs)
            if env is not None:
                answer = (True, waiter.result(perform(env, method, args)))
        except Exception as error:  # noqa: BLE001 - the parent process raises it
            answer = (False, as_data(error))
        try:
            pipe.send(answer)
        except (OSError, EOFError):
            _exit()
        except Exception as error:  # noqa: BLE001 - the result cannot be pickled
            name = f"{method}() of {described(entry_point)}"
            unpicklable = ContractError(f"cannot pickle the result of {name}: {error}")
            pipe.send((False, as_data(unpicklable)))
        if method == "close":
            _exit()


def _listen(pipe: Connection, calls: SimpleQueue[tuple[str, tuple[Any, ...]]]) -> None:
    """Read calls on a thread, so a closed pipe ends the process even during a step."""
    while True:
        try:
            calls.put(pipe.recv())
        except (EOFError, OSError):
            _exit()


def _exit() -> None:
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)  # this process and its children
    os._exit(0)
