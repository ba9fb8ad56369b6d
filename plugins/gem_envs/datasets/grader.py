"""Grader: a process that scores answers which may take for ever, so that the one who asks does not.

A thread cannot stop a computation and `signal.alarm` works in the main thread only. A grader process can be killed, from any
thread; it is started again for the next answer. One set of processes serves all environments of a process.
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
"""Importing sympy on a busy machine takes a while, and is not the answer's fault."""
_MEMORY = 4 << 30


class Grader:
    """Processes that call one function, `module:function`, with JSON arguments. Thread-safe.

    A process calls it with `warm_up` before it takes answers, so that no answer pays for imports with its seconds.
    """

    def __init__(self, target: str, warm_up: tuple[Any, ...], processes: int = 2) -> None:
        self.target, self.warm_up = target, warm_up
        self._pid = os.getpid()
        self._idle: queue.LifoQueue[_Process | None] = queue.LifoQueue()
        for _ in range(processes):
            self._idle.put(None)  # started when it is needed

    def __call__(self, *args: Any, seconds: float = 5.0) -> Any:
        """The function's result. DeadlineError if it takes longer, EnvError if it raises, EnvDiedError if its process dies;
        ConfigError if it cannot be started at all."""
        process = self._idle.get()
        try:
            if process is not None and not process.alive():
                process.kill()
                process = None
            if process is None:
                process = _Process(self.target, self.warm_up)
            return process.call(args, seconds)
        except (DeadlineError, EnvDiedError):
            if process is not None:
                process.kill()
            process = None
            raise
        finally:
            self._idle.put(process)

    def close(self) -> None:
        """Ends the waiting processes."""
        with suppress(queue.Empty):
            while True:
                process = self._idle.get_nowait()
                if process is not None and self._pid == os.getpid():
                    process.kill()


def shared_grader(target: str, *warm_up: Any) -> Grader:
    """The grader of this process for a function; a forked child gets one of its own."""
    return _grader(target, warm_up, os.getpid())


@cache
def _grader(target: str, warm_up: tuple[Any, ...], pid: int) -> Grader:
    grader = Grader(target, warm_up)
    atexit.register(grader.close)
    return grader


class _Process:
    def __init__(self, target: str, warm_up: tuple[Any, ...]) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "from gem_envs.datasets.grader import serve; serve()",
                target,
                json.dumps(warm_up),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            env=environment,
        )
        self._answers: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name="gem-grader", daemon=True)
        self._reader.start()
        try:
            said = self._next(_SECONDS_TO_START)
        except EnvError as error:
            said = str(error)
        if said != "ready":
            self.kill()
            # Not an EnvError: those are about one answer, and this is about all of them.
            raise ConfigError(f"the grader process of {target} could not start: {said}")

    def alive(self) -> bool:
        return self._process.poll() is None

    def call(self, args: tuple[Any, ...], seconds: float) -> Any:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(args) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise EnvDiedError(f"the grader process is gone: {error}") from error
        answer = json.loads(self._next(seconds))
        if "error" in answer:
            raise EnvError(answer["error"])
        return answer["result"]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was still to be written has nobody to read it
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
    """What a grader process does: one JSON list of arguments a line in, one JSON object a line out."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not stand between the answers
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    module, _, name = sys.argv[1].partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
        function(*json.loads(sys.argv[2]))
        said = "ready"
    except Exception as error:  # noqa: BLE001 - told to the one who started it
        function, said = None, f"{type(error).__name__}: {error}".replace("\n", " ")
    out.write(said + "\n")
    out.flush()
    requests: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            requests.put(line)
        os._exit(0)  # whoever started this process is gone, whatever is being computed

    threading.Thread(target=read, daemon=True).start()
    while function is not None:
        args = json.loads(requests.get())
        try:
            answer = {"result": function(*args)}
        except Exception as error:  # noqa: BLE001 - reported as the answer
            answer = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        out.write(json.dumps(answer) + "\n")
        out.flush()
