"""Progress line of an evaluation on stderr: episodes, rate, scores, and a server that is silent.

A terminal shows one line that is updated in place; a log gets a new line every 15 seconds.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from gem_core.types import Episode

__all__ = ["Progress"]

_BAR = 20
_EVERY = {True: 0.1, False: 15.0}
"""Seconds between updates, by whether stderr is a terminal."""
_SILENT = 5.0
"""Seconds without an answer after which the server counts as silent."""


class Progress:
    """Count episodes as they end, and print the progress line unless `quiet`."""

    def __init__(
        self,
        name: str,
        total: int,
        *,
        quiet: bool = False,
        troubles: Callable[[], Mapping[str, int]] = dict,
        silence: Callable[[], float] = float,
        timeout: float = 0.0,
    ) -> None:
        """`troubles` returns the counts of server failures that a retry recovered from.

        `silence` returns the seconds since the server last answered, `timeout` is its limit.
        """
        self._name, self._total, self._quiet, self._troubles = name, total, quiet, troubles
        self._silence, self._timeout = silence, timeout
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._terminal = sys.stderr.isatty()
        self._began = self._shown = time.monotonic()
        self._earlier = self._done = self._failed = self._successes = self._with_success = 0
        self._returns = 0.0
        self._wide = 0

    def begin(self, recorded: Sequence[Episode]) -> None:
        """Count the episodes of an earlier run, but not in the rate."""
        for episode in recorded:
            self._count(episode)
        self._earlier = self._done
        self._began = time.monotonic()
        if recorded and not self._quiet:
            print(
                f"{self._name}: resuming, {self._done} of {self._total} episodes are recorded",
                file=sys.stderr,
                flush=True,
            )
        if not self._quiet:
            threading.Thread(target=self._watch, name="gem-progress", daemon=True).start()

    def episode(self, episode: Episode) -> None:
        """Count an episode that ended."""
        with self._lock:
            self._count(episode)
            if not self._quiet and time.monotonic() - self._shown >= _EVERY[self._terminal]:
                self._show()

    def end(self) -> None:
        """Print the final state and keep it on the terminal."""
        self._ended.set()
        with self._lock:
            if self._quiet or self._done == self._earlier:
                return
            self._show()
        if self._terminal:
            print(file=sys.stderr, flush=True)

    def _watch(self) -> None:
        """Show the line while no episode ends because the server is silent."""
        while not self._ended.wait(max(1.0, _EVERY[self._terminal])):
            with self._lock:
                if self._silence() >= _SILENT and not self._ended.is_set():
                    self._show()

    def _count(self, episode: Episode) -> None:
        self._done += 1
        if episode.failed:
            self._failed += 1
            return
        self._returns += episode.total_reward or 0.0
        self._with_success += episode.success is not None
        self._successes += bool(episode.success)

    def _show(self) -> None:
        self._shown = time.monotonic()
        known = self._done - self._failed
        rate = (self._done - self._earlier) / max(time.monotonic() - self._began, 1e-9)
        filled = _BAR * self._done // self._total
        parts = [f"{self._name} [{'#' * filled}{'.' * (_BAR - filled)}] {self._done}/{self._total}"]
        parts.append(f"{rate:.1f}/s" if rate >= 1 else f"{60 * rate:.1f}/min")
        silence = self._silence()
        if silence >= _SILENT:
            parts.append(
                f"waiting for the server: no answer for {silence:.0f} s (limit {self._timeout:g} s)"
            )
        elif self._done < self._total:
            parts.append(f"{_duration((self._total - self._done) / rate)} left" if rate else "")
        if known:
            parts.append(f"return {self._returns / known:.3f}")
        if self._with_success:
            parts.append(f"success {self._successes / known:.1%}")
        if self._failed:
            parts.append(f"{self._failed} failed")
        retries = sum(self._troubles().values())
        if retries:
            parts.append(f"{retries} server failure{'s' * (retries != 1)}")
        line = "  ".join(filter(None, parts))
        if self._terminal:
            self._wide = max(self._wide, len(line))
            print(f"\r{line.ljust(self._wide)}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
