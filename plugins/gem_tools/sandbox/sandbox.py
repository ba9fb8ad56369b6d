"""Sandbox: runs untrusted Python in pre-started processes, one per call.

With bubblewrap or in a container, a process has its own files, processes, users and network: full
isolation. The fallback limits the resources of a process and, on Linux, restricts its files
(Landlock) and system calls (seccomp). `Containment` lists what is and is not contained;
docs/sandbox.md has a table that a test checks.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import get_args

from gem_core.arguments import whole_number
from gem_core.errors import ConfigError
from gem_tools.sandbox.container import IMAGE, ContainerPlan
from gem_tools.sandbox.containment import Containment, Isolation, contain, make_box
from gem_tools.sandbox.launch import Plan, SandboxLimits
from gem_tools.sandbox.process import Box, Outcome
from gem_tools.tool import ToolError

__all__ = ["Containment", "Isolation", "Outcome", "Sandbox", "SandboxLimits"]

_log = logging.getLogger(__name__)
_PAUSE = 0.02
_SECONDS_TO_LOOK = 1.0
_SECONDS_TO_CLOSE = 5.0


class Sandbox:
    """A pool of workers that wait for code. Thread-safe; `run` blocks only its caller."""

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
        image: str = "",
    ) -> None:
        """Configure the sandbox.

        `packages` makes the packages of gem's environment importable, or those of the container's
        `image` (by default `IMAGE`), which must have `python3`. `preload` lists modules to
        import before the call. `warm` is the number of waiting workers (default: two per core, at
        most 8), `running` the number of concurrent calls (default: four per core, at least 16). The
        time limit of a call starts when it runs, not while it waits. `filters=False` disables
        Landlock and seccomp in the fallback.
        """
        if isolation not in get_args(Isolation):
            allowed = ", ".join(map(repr, get_args(Isolation)))
            raise ConfigError(f"isolation must be one of {allowed}; got {isolation!r}")
        if image and isolation != "container":
            raise ConfigError(f"image={image!r} needs isolation='container'; got {isolation!r}")
        cores = os.cpu_count() or 1
        self.limits = limits or SandboxLimits()
        self.warm = whole_number("warm", min(8, 2 * cores) if warm is None else warm, 0)
        self.running = whole_number(
            "running", max(16, 4 * cores) if running is None else running, 1
        )
        image = image or IMAGE
        self.containment = contain(isolation, filters, image)
        if isolation == "container":
            self._plan: Plan = ContainerPlan(image, self.limits, packages, tuple(preload))
        else:
            self._plan = Plan(self.containment.parts, self.limits, packages, tuple(preload))
        self._closed = False
        self._clear()
        _open.add(self)

    def _clear(self) -> None:
        self._pid = os.getpid()
        self._slots = threading.BoundedSemaphore(self.running)
        self._change = threading.Condition()
        self._ready: deque[Box] = deque()
        self._dead: deque[Box] = deque()
        """Killed boxes that the starter thread cleans up, so no call waits for that."""
        self._waiting = 0
        self._starter: threading.Thread | None = None
        self._start_error: BaseException | None = None

    def run(
        self, code: str, *, state: bytes | None = None, keep: bool = False, echo: bool = False
    ) -> Outcome:
        """Run a program until it ends or reaches a limit.

        `keep` saves its names in `Outcome.state`. `echo` prints the value of a last expression.
        """
        self._check_fork()
        with self._slots:
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
        """Start the waiting workers now, not at the first call."""
        self._check_fork()
        with self._change:
            self._start_thread()

    def close(self) -> None:
        """End the waiting workers; a second call does nothing."""
        self._check_fork()
        with self._change:
            self._closed = True
            boxes = [*self._ready, *self._dead]
            self._ready.clear()
            self._dead.clear()
            self._change.notify_all()
        for box in boxes:
            box.kill()
        for box in boxes:  # they end at the same time
            box.end()
        if self._starter is not None:  # it may be starting a worker, which it then ends
            self._starter.join(_SECONDS_TO_CLOSE)
        _open.discard(self)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_fork(self) -> None:
        """Start with an empty pool in a forked process: the workers belong to the parent."""
        if self._pid != os.getpid():
            self._clear()

    def _take(self) -> Box:
        with self._change:
            self._start_thread()
            self._drop_dead()
            if self._ready:  # its replacement starts after the call, to leave it the processor
                return self._ready.popleft()
            self._waiting += 1
            self._change.notify_all()
            try:
                while not self._ready:
                    if self._closed:
                        raise ToolError("the sandbox is closed; create another one")
                    if self._start_error is not None:
                        error, self._start_error = self._start_error, None
                        raise ToolError(f"cannot start a sandbox worker: {error}") from error
                    self._start_thread()  # another one, if it died
                    self._change.wait(_SECONDS_TO_LOOK)
                return self._ready.popleft()
            finally:
                self._waiting -= 1
                self._change.notify_all()

    def _start_thread(self) -> None:
        if self._closed:
            raise ToolError("the sandbox is closed; create another one")
        if self._starter is None or not self._starter.is_alive():
            # One thread starts all workers, because a worker dies with the thread that started it.
            self._starter = threading.Thread(
                target=self._keep_warm, name="gem-sandbox", daemon=True
            )
            self._starter.start()

    def _drop_dead(self) -> None:
        """Drop waiting workers that something else killed, such as the OOM killer."""
        for box in [box for box in self._ready if not box.alive()]:
            self._ready.remove(box)
            self._dead.append(box)

    def _keep_warm(self) -> None:
        while not self._closed:
            with self._change:
                while not (self._closed or self._dead or self._needs_workers()):
                    self._change.wait()
                urgent = self._waiting > len(self._ready)
                dead = self._dead.popleft() if self._dead and not urgent else None
                if dead is None and not self._closed and not urgent:
                    self._change.wait(_PAUSE)  # a call that has just started gets the processor
            if dead is not None:
                try:
                    dead.end()
                except Exception:  # noqa: BLE001 - later calls need this thread
                    _log.warning("cannot clean up after a sandbox worker", exc_info=True)
                continue
            if self._closed or self._start_error is not None:
                continue
            try:
                box = make_box(self._plan)
            except Exception as error:  # noqa: BLE001 - `_take` raises it in the caller
                with self._change:
                    self._start_error = error
                    self._change.notify_all()
                continue
            with self._change:
                if not self._closed:
                    self._ready.append(box)
                    self._change.notify_all()
                    continue
            box.end()

    def _needs_workers(self) -> bool:
        too_few = len(self._ready) < max(self._waiting, self.warm)
        return too_few and self._start_error is None


_open: set[Sandbox] = set()


@atexit.register
def _close_all() -> None:
    for sandbox in list(_open):
        sandbox.close()
