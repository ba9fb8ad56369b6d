"""Logs: gem's metrics in TRL's log, and one line per episode in its tables."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, compress
from statistics import fmean
from typing import Any

from accelerate.utils import gather_object
from transformers import TrainerCallback

from gem_core.training.metrics import BatchMetrics, logprob_gap
from gem_core.types import Episode
from gem_trl.convert import Row, completion_of
from gem_trl.updates import Batch, updates_of

__all__ = ["Evaluation", "gather", "log_batch", "log_lengths", "log_table", "separate_table"]

_NOT_TOTALLED = "gem/logprob_gap"  # a percentile has no total: TRL logs the mean of the batches


class Evaluation(TrainerCallback):  # type: ignore[misc]
    """Logs the metrics of an evaluation over all its episodes, as `eval_gem/…`.

    TRL logs the mean of the batches' means, in which a small last batch counts as much as the
    others. On several ranks, accelerate fills the last batches with the first prompts again; these
    episodes are played, but not counted a second time.
    """

    _dataloader: Any
    _total: BatchMetrics
    _played: Counter[int | None]
    """Counted episodes by seed."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._batch: list[tuple[int | None, BatchMetrics]] = []
        self._reset()

    def add(
        self, episodes: Sequence[Episode], per_turn: Sequence[Sequence[float]] | None = None
    ) -> None:
        """Add this rank's episodes of one batch; `per_turn` are their advantages."""
        self._batch = [
            (e.seed, BatchMetrics.of([e], None if per_turn is None else [per_turn[i]]))
            for i, e in enumerate(episodes)
        ]

    def on_prediction_step(
        self, args: Any, state: Any, control: Any, eval_dataloader: Any = None, **_: Any
    ) -> None:
        """Replace the metrics of the batches with those of all episodes up to now."""
        if eval_dataloader is not self._dataloader:  # also after an interrupted evaluation
            self._reset(eval_dataloader)
        batch, self._batch = self._batch, []
        for seed, metrics in chain(*gather(batch)):
            if self._played[seed] < self.trainer.num_generations_eval:
                self._played[seed] += 1
                self._total = BatchMetrics.total([self._total, metrics])
        logged = self.trainer._metrics["eval"]
        for name in [n for n in logged if n.startswith("gem/") and _NOT_TOTALLED not in n]:
            del logged[name]
        for name, value in self._total.means().items():
            logged[f"gem/{name}"] = [value]

    def on_evaluate(self, *_: Any, **__: Any) -> None:
        self._reset()

    def _reset(self, dataloader: Any = None) -> None:
        self._dataloader, self._total, self._played = dataloader, BatchMetrics(), Counter()


def log_batch(trainer: Any, own: BatchMetrics, batch: Mapping[str, Any]) -> None:
    """Log the metrics that depend on advantages; the reward function logs the others."""
    gap = _logprob_gap(batch)
    metrics, training = BatchMetrics.total(gather(own)), trainer.model.training
    logged = {n: value for n, value in metrics.means().items() if n.endswith("advantage_abs")}
    for name, value in {**logged, **gap}.items():
        trainer._metrics["train" if training else "eval"][f"gem/{name}"].append(value)
    if training:
        trainer.gem_rollout.updates.batches.append(Batch(updates_of(trainer), metrics, gap))


def log_lengths(trainer: Any, rows: Sequence[Row], stops: frozenset[int]) -> None:
    """Correct TRL's metrics of completion lengths, in which padding rows have length 0.

    Only rows with trained tokens count. A completion is clipped if it does not end in `stops`.
    """
    completions = [completion_of(row.sequence) for row in rows]
    own = [(sum(mask), ids[-1] in stops) for ids, mask in completions if any(mask)]
    lengths = list(chain(*gather(own)))
    ended = [length for length, stopped in lengths if stopped]
    values = {"clipped_ratio": 1 - len(ended) / len(lengths)} if lengths else {}
    for kind, counted in (("", [length for length, _ in lengths]), ("terminated_", ended)):
        if counted:
            values[f"mean_{kind}length"] = fmean(counted)
            values[f"min_{kind}length"] = float(min(counted))
    logged = trainer._metrics["train" if trainer.model.training else "eval"]
    for name, value in values.items():
        if logged.get(f"completions/{name}"):
            logged[f"completions/{name}"][-1] = value


@contextmanager
def separate_table(trainer: Any) -> Iterator[dict[str, Any]]:
    """Give TRL empty tables of unlimited length for one batch, and restore its own."""
    own = trainer._logs
    trainer._logs = {
        name: defaultdict(deque) if isinstance(column, dict) else deque()
        for name, column in own.items()
    }
    try:
        yield trainer._logs
    finally:
        trainer._logs = own


def log_table(
    trainer: Any, batch: dict[str, Any], rows: Sequence[Row], per_turn: Sequence[Sequence[float]]
) -> None:
    """Add the first row of each episode to TRL's tables, with the advantage of its first turn.

    TRL's tables have room for one generation batch; further rows and padding rows would push the
    first rows out.
    """
    turns = [next((t for t in row.sequence.turn_of if t >= 0), None) for row in rows]
    advantages = [0.0 if t is None else per_turn[row.number][t] for row, t in zip(rows, turns)]
    shown = list(chain(*gather([(r.episode is not None, a) for r, a in zip(rows, advantages)])))
    first = [is_first for is_first, _ in shown]
    columns = {**batch, "advantages": [advantage for _, advantage in shown]}
    for name, column in columns.items():
        table = trainer._logs[name]
        if isinstance(column, dict):
            for key, values in column.items():
                table[key].extend(compress(values, first))
        else:
            table.extend(compress(column, first))


def gather(value: Any) -> list[Any]:
    """Collect a value from every rank."""
    gathered: list[Any] = gather_object([value])
    return gathered


def _logprob_gap(batch: Mapping[str, Any]) -> dict[str, float]:
    """Compare the logprobs of vLLM and of the trainer, if TRL computes the latter."""
    if batch.get("old_per_token_logps") is None:
        return {}
    trained = (batch["completion_mask"] * batch["tool_mask"]).bool()
    sampler, learner = batch.get("sampling_per_token_logps"), batch["old_per_token_logps"]
    own = None if sampler is None else (sampler[trained].tolist(), learner[trained].tolist())
    parts = [part for part in gather(own) if part is not None]
    return logprob_gap(chain(*(part[0] for part in parts)), chain(*(part[1] for part in parts)))
