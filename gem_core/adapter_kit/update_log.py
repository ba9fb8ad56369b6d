"""Update log: writes the metrics of each update, and stops a run in which every episode fails.

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
| `logprob_gap`   | mean of abs(sampler's − trainer's logprob), if the trainer computes both; also |
|                 | `logprob_gap_p99`, the 99th percentile                                       |
| `turn/K/…`      | of the turns K, such as 4-7: `return` from there on, `tokens`, `success`,    |
|                 | `advantage_abs`                                                              |
| `env/ID/…`      | of one environment of a mixture: `return`, `turns`, `success`, `advantage_abs` |
| `horizon`       | the cap on turns, if there is one                                            |
| `loss`, `grad_norm`, … | the trainer's own metrics, if it reports them                         |

They go to `GemConfig.metrics`, and to plugins as the event `update_end`. In a trainer's own log
they have the prefix `gem/`.
"""

from __future__ import annotations

import logging
import time

from gem_core.errors import EnvError
from gem_core.plugins.events import send_event
from gem_core.training.config import TrainingConfig
from gem_core.training.horizon import HorizonSchedule
from gem_core.training.metrics import BatchMetrics
from gem_core.training.metrics_file import MetricsFile, finite

__all__ = ["UpdateLog"]

_ALWAYS = ("success", "return", "turns", "failed", "advantage_abs")
_log = logging.getLogger("gem_core.training")


class UpdateLog:
    """Watches the updates of a run and appends one line each to the metrics file.

    Every rank has one and passes it the metrics of all ranks, so a failing run ends on all of them.
    Only the rank with `write` writes, and sends the event `update_end`.
    """

    def __init__(
        self,
        path: str | None,
        *,
        write: bool = True,
        max_failed_updates: int = 0,
        estimator: str = "",
        schedule: HorizonSchedule | None = None,
        since: float | None = None,
    ) -> None:
        """Create the log; None as `path` writes no file. 0 as `max_failed_updates` never stops.

        `since`: when the first update began, by `time.monotonic`; None: now.
        """
        self._file = MetricsFile(path) if write and path is not None else None
        self._write = write
        self._max_failed_updates, self._estimator = max_failed_updates, estimator
        self._schedule = schedule
        self._begun = False
        self._failed_updates = 0
        self._warnings: dict[str, int] = {}
        self._last = time.monotonic() if since is None else since

    @classmethod
    def of(
        cls, config: TrainingConfig, *, write: bool = True, since: float | None = None
    ) -> UpdateLog:
        """Create the log of a config; `write`: whether this rank writes the metrics file."""
        return cls(
            config.metrics,
            write=write,
            max_failed_updates=config.max_failed_updates,
            estimator=config.advantage,
            schedule=config.schedule,
            since=since,
        )

    def write(self, step: int, batch: BatchMetrics, **trainer: float | None) -> None:
        """Write update `step`, counted from 0, and send the event `update_end`.

        Raises `EnvError` after `max_failed_updates` updates in which every episode failed.
        """
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        means = batch.means()
        if self._schedule is not None:
            trainer = {"horizon": self._schedule(step), **trainer}
        if self._write:
            self._send(
                step,
                {
                    **{name: means.pop(name, None) for name in _ALWAYS},
                    "episodes": batch.episodes,
                    "tokens": batch.tokens,
                    "seconds": seconds,
                    **{name: value for name, value in means.items() if "/" in name},
                    **trainer,
                },
            )
        self._watch(step, batch)

    def _send(self, step: int, metrics: dict[str, float | None]) -> None:
        """Append a line to the metrics file, which also sends the event; without one, send it."""
        if self._file is None:
            send_event("update_end", step=step, metrics=finite(metrics))
            return
        if step and not self._begun:  # of a resumed run: a new one begins with update 0
            self._file.resume(step)
        self._begun = True
        self._file.write(step=step, **metrics)

    def _watch(self, step: int, batch: BatchMetrics) -> None:
        """Stop a run without turns in the loss; warn if most episodes failed or all A are 0."""
        failed, failure = batch.failed, batch.failure
        empty = failed if not batch.finished else not batch.tokens
        self._failed_updates = self._failed_updates + 1 if empty else 0
        if self._max_failed_updates and self._failed_updates >= self._max_failed_updates:
            if batch.finished:
                raise EnvError(
                    f"no turn of the last {self._failed_updates} updates is in the loss: the first "
                    "prompt exceeds the context limit, or every turn is masked; raise the caps on "
                    "tokens, or set max_failed_updates=0 to continue regardless"
                )
            traceback = "" if failure is None else f"\n\n{failure.traceback.rstrip()}"
            raise EnvError(
                f"every episode of the last {self._failed_updates} updates failed, "
                f"so nothing was trained; the last failure is: {failure}. Fix the environment "
                "(`gem-rl check ID` plays it without a model), or set max_failed_updates=0 to "
                f"continue regardless{traceback}"
            )
        if 2 * failed > batch.episodes:
            self._warn(
                "failed",
                f"update {step}: {failed} of {batch.episodes} episodes failed and are excluded; "
                f"the first failure is: {failure}",
            )
        total, _ = batch.breakdown.get("advantage_abs", (1.0, 1))
        if batch.tokens and not total:
            self._warn(
                "zero",
                f"update {step}: all advantages are 0, so this update has no gradient: "
                f"{_why_zero(self._estimator, batch)}",
            )

    def _warn(self, kind: str, message: str) -> None:
        """Warn at the first, second, fourth, eighth … time."""
        self._warnings[kind] = times = self._warnings.get(kind, 0) + 1
        if times & (times - 1) == 0:
            _log.warning("%s%s", message, "" if times == 1 else f" (such updates so far: {times})")


def _why_zero(estimator: str, batch: BatchMetrics) -> str:
    reward = f"mean return {batch.returns / batch.finished:g}"
    if estimator in ("grpo", "rloo"):
        return (
            f"the episodes of each seed have equal returns ({reward}); use easier or harder tasks, "
            "more episodes per seed, or 'rebn', which compares all episodes of the batch"
        )
    return (
        f"all returns are equal ({reward}); if the model never succeeds, warm it up on "
        "demonstrations or use easier tasks"
    )
