"""Grader: a pool of processes that score answers under a time limit.

Scoring may never end. A thread cannot stop a computation, and `signal.alarm` works only in the main
thread, but any thread can kill a process. A killed process is restarted for the next answer. All
environments of a process share one pool.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import queue
import subprocess
import sys
import threading
from contextlib import suppress
from functools import cache
from typing import Any

from gem_core.errors import ConfigError, DeadlineError, EnvDiedError, EnvError

__all__ = ["Grader", "shared_grader"]

_SECONDS_TO_START = 120.0
"""Start-up limit, separate from the time limit of an answer: importing sympy can be slow."""
_MEMORY = 4 << 30


class Grader:
    """A pool of processes that call one function, `module:function`, with JSON arguments.

    Each process calls the function with `warm_up` once before the first answer, which keeps imports
    out of the time limit. Thread-safe.
    """

    def __init__(self, target: str, warm_up: tuple[Any, ...], processes: int = 2) -> None:
        self.target, self.warm_up = target, warm_up
        self._pid = os.getpid()
        self._idle: queue.LifoQueue[_Process | None] = queue.LifoQueue()
        for _ in range(processes):
            self._idle.put(None)  # None: not started yet

    def __call__(self, *args: Any, seconds: float = 5.0) -> Any:
        """Call the function in a grader process and return its result.

        Raises `DeadlineError` if the call exceeds `seconds`, `EnvError` if the function raises,
        `EnvDiedError` if the process dies and `ConfigError` if the process cannot start.
        """
        process = self._idle.get()
        try:
            if process is not None and not process.alive():
                process.kill()
                process = None
            if process is None:
                process = _Process(self.target, self.warm_up)
            answer = process.call(args, seconds)
        except BaseException:  # also KeyboardInterrupt: the next call would get this call's answer
            interrupted, process = process, None
            if interrupted is not None:
                interrupted.kill()
            raise
        finally:
            self._idle.put(process)
        if "error" in answer:
            raise EnvError(answer["error"])
        return answer["result"]

    def close(self) -> None:
        """Kill the idle processes."""
        with suppress(queue.Empty):
            while True:
                process = self._idle.get_nowait()
                if process is not None and self._pid == os.getpid():
                    process.kill()


def shared_grader(target: str, *warm_up: Any) -> Grader:
    """Return this process's grader for a function; a forked child gets its own."""
    return _grader(target, warm_up, os.getpid())


@cache
def _grader(target: str, warm_up: tuple[Any, ...], pid: int) -> Grader:
    grader = Grader(target, warm_up)
    atexit.register(grader.close)
    return grader


class _Process:
    def __init__(self, target: str, warm_up: tuple[Any, ...]) -> None:
        paths = os.pathsep.join(p or os.getcwd() for p in sys.path)
        # -c puts the working folder on the path, where anyone may have left a gem_core.py.
        start = "import sys; sys.path = [p for p in sys.path if p]; "
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                start + "from gem_envs.datasets.grader import serve; serve()",
                target,
                json.dumps(warm_up),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": paths},
        )
        self._answers: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name="gem-grader", daemon=True)
        self._reader.start()
        try:
            status = self._next(_SECONDS_TO_START)
        except EnvError as error:
            status = str(error)
        except BaseException:
            self.kill()
            raise
        if status != "ready":
            self.kill()
            # An EnvError would fail one answer, but no answer can be graded.
            raise ConfigError(f"the grader process of {target} could not start: {status}")

    def alive(self) -> bool:
        return self._process.poll() is None

    def call(self, args: tuple[Any, ...], seconds: float) -> dict[str, Any]:
        """Return {"result": ...}, or {"error": ...} if the function raises."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(args) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise EnvDiedError(f"the grader process died: {error}") from error
        answer: dict[str, Any] = json.loads(self._next(seconds))
        return answer

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # closing flushes to a dead process
                    pipe.close()

    def _next(self, seconds: float) -> str:
        try:
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise DeadlineError(f"grading took more than {seconds:g} seconds") from None
        if not line:
            raise EnvDiedError(f"the grader process ended with status {self._process.wait()}")
        return line.rstrip("\n")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")


def serve() -> None:
    """Run a grader process: each line read is a JSON argument list, each line written a result."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # keep what libraries print out of the protocol
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    module, _, name = sys.argv[1].partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
        function(*json.loads(sys.argv[2]))
        status = "ready"
    except Exception as error:  # noqa: BLE001 - reported to the parent process
        function, status = None, f"{type(error).__name__}: {error}".replace("\n", " ")
    out.write(status + "\n")
    out.flush()
    requests: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            requests.put(line)
        os._exit(0)  # the parent process ended: stop even in the middle of a computation

    threading.Thread(target=read, daemon=True).start()
    while function is not None:
        args = json.loads(requests.get())
        try:
            answer = {"result": function(*args)}
        except Exception as error:  # noqa: BLE001 - reported to the parent process
            answer = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        out.write(json.dumps(answer) + "\n")
        out.flush()
