"""Update log: writes the metrics of each update to `GemConfig.metrics`, alike in every trainer.

| name            | meaning                                                                      |
|-----------------|------------------------------------------------------------------------------|
| `success`       | share of the finished episodes that succeeded                                |
| `return`        | mean undiscounted return of the finished episodes                            |
| `turns`         | mean number of turns of the finished episodes                                |
| `failed`        | share of all episodes that failed                                            |
| `episodes`      | number of episodes                                                           |
| `tokens`        | number of trained tokens                                                     |
| `advantage_abs` | mean of abs(advantage) over the trained turns                                |
| `seconds`       | wall time since the last update                                              |
| `loss`, `grad_norm`, … | the trainer's own metrics, if it reports them                         |

Rollout metrics in a trainer's own log have the same names with the prefix `gem/`.
"""

from __future__ import annotations

import time

from gem_core.training.metrics import BatchMetrics
from gem_core.training.metrics_file import MetricsFile

__all__ = ["UpdateLog"]


class UpdateLog:
    """Appends one line per update to the metrics file; writes nothing if the path is None."""

    def __init__(self, path: str | None) -> None:
        self._file = MetricsFile(path) if path is not None else None
        self._last = time.monotonic()

    def write(
        self, step: int, episodes: BatchMetrics, *, advantage_abs: float, **trainer: float | None
    ) -> None:
        """Write update `step`, counted from 0, and send the event `update_end`."""
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        if self._file is None:
            return
        means = episodes.means()
        self._file.write(
            step=step,
            **{name: means.get(name) for name in ("success", "return", "turns", "failed")},
            episodes=episodes.episodes,
            tokens=episodes.tokens,
            advantage_abs=advantage_abs,
            seconds=seconds,
            **trainer,
        )
