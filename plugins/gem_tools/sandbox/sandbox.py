"""Sandbox: runs Python that nobody has read, in a process of its own that is started ahead of time and serves one call.

Where bubblewrap works, the process has its own files, processes, users and network, and isolation is full. Elsewhere a
fallback limits what one process may use and, on Linux, asks the kernel to refuse files (Landlock) and system calls (seccomp);
`Containment` says what then is and is not contained. docs/sandbox.md has the table, checked by a test.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Sequence

from gem_core.arguments import whole_number
from gem_core.errors import ConfigError
from gem_tools.sandbox.containment import Containment, Isolation, contain
from gem_tools.sandbox.launch import Plan, SandboxLimits
from gem_tools.sandbox.process import Box, Outcome
from gem_tools.tool import ToolError

__all__ = ["Containment", "Isolation", "Outcome", "Sandbox", "SandboxLimits"]

_PAUSE = 0.02
_SECONDS_TO_CLOSE = 5.0


class Sandbox:
    """Workers waiting for code. Thread-safe; `run` blocks its caller only."""

    def __init__(
        self,
        limits: SandboxLimits | None = None,
        *,
        isolation: Isolation = "auto",
        packages: bool = False,
        preload: Sequence[str] = (),
        warm: int | None = None,
        running: int | None = None,
        filters: bool = True,
    ) -> None:
        """`packages` shows the packages installed beside gem; `preload` imports modules ahead of the call. `warm` workers wait
        (default: two for each core, 8 at most) and `running` calls run at a time (default: 16, or four for each core); a call
        that waits for its turn loses none of its seconds. `filters=False` is a fallback without Landlock and seccomp."""
        if isolation not in ("auto", "full", "partial"):
            raise ConfigError(
                f"isolation must be 'auto', 'full' or 'partial'; given: {isolation!r}"
            )
        cores = os.cpu_count() or 1
        self.limits = limits or SandboxLimits()
        self.warm = whole_number("warm", min(8, 2 * cores) if warm is None else warm, 0)
        self.running = whole_number(
            "running", max(16, 4 * cores) if running is None else running, 1
        )
        self.containment = contain(isolation, filters)
        self._plan = Plan(self.containment.parts, self.limits, packages, tuple(preload))
        self._closed = False
        self._clear()
        _open.add(self)

    def _clear(self) -> None:
        self._pid = os.getpid()
        self._turns = threading.BoundedSemaphore(self.running)
        self._change = threading.Condition()
        self._ready: deque[Box] = deque()
        self._dead: deque[Box] = deque()
        """Killed, and still to be cleared away, which no call should wait for."""
        self._wanted = 0
        self._starter: threading.Thread | None = None
        self._broken: BaseException | None = None

    def run(
        self, code: str, *, state: bytes | None = None, keep: bool = False, echo: bool = False
    ) -> Outcome:
        """Runs one program to its end or its limit. With `keep`, names live on in `Outcome.state`; with `echo`, the value of a
        last expression is printed."""
        self._check_fork()
        with self._turns:
            box = self._take()
            try:
                return box.serve(code, state, keep, echo, self.limits)
            finally:
                box.kill()
                with self._change:
                    self._dead.append(box)
                    self._change.notify_all()
                if self._closed:
                    box.end()

    def start(self) -> None:
        """Starts the waiting workers now instead of at the first call."""
        self._check_fork()
        with self._change:
            self._begin()

    def close(self) -> None:
        """Ends the waiting workers. Calling it twice is harmless."""
        self._check_fork()
        with self._change:
            self._closed = True
            left = [*self._ready, *self._dead]
            self._ready.clear()
            self._dead.clear()
            self._change.notify_all()
        for box in left:
            box.end()
        if self._starter is not None:
            self._starter.join(
                _SECONDS_TO_CLOSE
            )  # it may be starting one just now, which it then ends
        _open.discard(self)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_fork(self) -> None:
        """A fork has none of its parent's threads, and its parent's workers are not its own to use or to end."""
        if self._pid != os.getpid():
            self._clear()

    def _take(self) -> Box:
        with self._change:
            self._begin()
            if self._ready:
                return (
                    self._ready.popleft()
                )  # its successor is started once it is done, so as not to compete with it
            self._wanted += 1
            self._change.notify_all()
            try:
                while not self._ready:
                    if self._closed:
                        raise ToolError("the sandbox is closed: make another one")
                    if self._broken is not None:
                        broken, self._broken = self._broken, None
                        raise ToolError(f"no sandbox worker can be started: {broken}") from broken
                    self._change.wait()
                return self._ready.popleft()
            finally:
                self._wanted -= 1
                self._change.notify_all()

    def _begin(self) -> None:
        if self._closed:
            raise ToolError("the sandbox is closed: make another one")
        if self._starter is None:
            # One thread starts all workers: they are told to die with the thread that made them, and it lives on.
            self._starter = threading.Thread(
                target=self._keep_warm, name="gem-sandbox", daemon=True
            )
            self._starter.start()

    def _keep_warm(self) -> None:
        while not self._closed:
            with self._change:
                while not (self._closed or self._dead or (self._broken is None and self._short())):
                    self._change.wait()
                dead = (
                    self._dead.popleft()
                    if self._dead and self._wanted <= len(self._ready)
                    else None
                )
                if dead is None and not self._closed and self._wanted <= len(self._ready):
                    self._change.wait(_PAUSE)  # a call that has just begun gets the processor first
            if dead is not None:
                dead.end()
                continue
            if self._closed or self._broken is not None:
                continue
            try:
                box = Box(self._plan)
            except Exception as error:  # noqa: BLE001 - handed to whoever waits for it
                with self._change:
                    self._broken = error
                    self._change.notify_all()
                continue
            with self._change:
                if not self._closed:
                    self._ready.append(box)
                    self._change.notify_all()
                    continue
            box.end()

    def _short(self) -> bool:
        """Whether more workers should be waiting than are."""
        return len(self._ready) < max(self._wanted, self.warm)


_open: set[Sandbox] = set()


@atexit.register
def _close_all() -> None:
    for sandbox in list(_open):
        sandbox.close()
