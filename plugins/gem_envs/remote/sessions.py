"""Sessions of the environment server: one environment each, limited in number and in idle time."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from inspect import isawaitable
from typing import Any

from gem_core.env.base import Env
from gem_core.env.maybe_async import awaited
from gem_core.records.redact import Redactor
from gem_core.types import Failure

__all__ = ["HttpError", "Session", "Sessions"]

_log = logging.getLogger(__name__)
_SECONDS_TO_CLOSE = 5.0


class HttpError(Exception):
    """Raised for a reply with a status other than 200."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Session:
    """The environment of one client; its random number keeps others from using it by mistake."""

    def __init__(self, env: Env, client: str) -> None:
        self.number = secrets.randbits(48)
        self.env = env
        self.client = client
        self.lock = threading.Lock()
        self.used = time.monotonic()
        self.observation = ""
        self.total = 0.0
        self.closing = False


class Sessions:
    """The open sessions. Thread-safe."""

    def __init__(
        self,
        make: Callable[[], Env],
        *,
        idle_seconds: float,
        max_sessions: int,
        max_per_client: int,
    ) -> None:
        self.make = make
        self.idle_seconds = idle_seconds
        self.max_sessions, self.max_per_client = max_sessions, max_per_client
        self.redactor = Redactor()
        self.refused = threading.Event()
        """Set when the server closes: there are no new sessions."""
        self._lock = threading.Lock()
        self._open: dict[int, Session] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop of all async environments; an environment's calls must share one loop."""
        self._loop_thread = threading.Thread(
            target=self._run_loop, name="gem-serve-loop", daemon=True
        )

    def __len__(self) -> int:
        return len(self._open)

    def start(self) -> None:
        """Start the threads that run async environments and close idle sessions."""
        self._loop = asyncio.new_event_loop()
        self._loop_thread.start()
        threading.Thread(target=self._collect_idle, name="gem-serve-idle", daemon=True).start()

    def create(self, client: str) -> Session:
        """Create a session with an environment of its own."""
        with self._lock:
            self._check_room(client)
        self.redactor.refresh()
        session = Session(self.make(), client)
        try:
            with self._lock:
                self._check_room(client)
                self._open[session.number] = session
        except HttpError:
            self.end(session)
            raise
        return session

    def _check_room(self, client: str) -> None:
        if self.refused.is_set() or len(self._open) >= self.max_sessions:
            raise HttpError(
                503, f"all {self.max_sessions} sessions are taken; close one or try again later"
            )
        of_client = sum(session.client == client for session in self._open.values())
        if of_client >= self.max_per_client:
            raise HttpError(
                429, f"{client} has {of_client} sessions, the most of one client; close one first"
            )

    def get(self, number: Any) -> Session:
        """Return an open session."""
        try:
            return self._open[int(number)]
        except (KeyError, TypeError, ValueError, OverflowError):
            raise HttpError(
                404,
                f"the session {str(number)[:40]} is not valid: it is unknown, closed, "
                f"or was idle for {self.idle_seconds:g} s",
            ) from None

    def remove(self, session: Session) -> None:
        """Close a session; if a step is running, that step closes it at its end."""
        with self._lock:
            self._open.pop(session.number, None)
        session.closing = True
        self.end(session, wait=False)

    def end(self, session: Session, *, wait: bool = True) -> None:
        """Close the environment, after the current step or, without `wait`, only if none runs."""
        if not session.lock.acquire(blocking=wait):
            return
        try:
            self.result(session.env.close())
        except BaseException as error:  # noqa: BLE001 - the session is dropped either way
            self.log_error(error, "closing a session failed")
        finally:
            session.lock.release()

    def result(self, value: Any) -> Any:
        """Return a value, or the result of an awaitable on the loop of all environments."""
        if not isawaitable(value):
            return value
        assert self._loop is not None, "the server has not started"
        return asyncio.run_coroutine_threadsafe(awaited(value), self._loop).result()

    def refuse(self) -> bool:
        """Create no more sessions; return False if that was so before."""
        with self._lock:
            first = not self.refused.is_set()
            self.refused.set()
        return first

    def close(self) -> None:
        """Close every session."""
        self.refuse()
        with self._lock:
            sessions = [*self._open.values()]
            self._open.clear()
        self._end_all(sessions)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop_thread.join(_SECONDS_TO_CLOSE)
            if not self._loop.is_running():
                self._loop.close()

    def log_error(self, error: BaseException, message: str, *args: object) -> None:
        """Log an exception without secrets."""
        trace = self.redactor.program_text(Failure.from_error(error, "serve").traceback.rstrip())
        _log.warning(f"{message}\n%s", *args, trace)

    def _run_loop(self) -> None:
        assert self._loop is not None
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _collect_idle(self) -> None:
        while not self.refused.wait(self.idle_seconds / 4):
            with self._lock:
                before = time.monotonic() - self.idle_seconds
                idle = [s for s in self._open.values() if s.used < before and not s.lock.locked()]
                for session in idle:
                    del self._open[session.number]
            self._end_all(idle)

    def _end_all(self, sessions: Sequence[Session]) -> None:
        """Close environments, each on its own thread, and log those that take too long."""
        threads = [
            threading.Thread(target=self.end, args=(s,), name="gem-serve-close", daemon=True)
            for s in sessions
        ]
        for thread in threads:
            thread.start()
        due = time.monotonic() + _SECONDS_TO_CLOSE
        for session, thread in zip(sessions, threads, strict=True):
            thread.join(max(0.0, due - time.monotonic()))
            if thread.is_alive():
                _log.warning(
                    "%s did not close within %g s: a step or its close() still runs",
                    type(session.env.unwrapped).__name__,
                    _SECONDS_TO_CLOSE,
                )
