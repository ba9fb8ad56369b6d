"""Updates: counts TRL's updates, and writes the metrics of each one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import TrainerCallback

from gem_core.adapter_kit.update_log import UpdateLog
from gem_core.training.metrics import BatchMetrics
from gem_trl.config import GemConfig, never_evaluated

__all__ = ["Batch", "Updates", "updates_of"]


@dataclass
class Batch:
    """A batch of episodes whose update is not yet written."""

    update: int
    metrics: BatchMetrics
    """Of all ranks."""
    gap: Mapping[str, float] = field(default_factory=dict)
    """`logprob_gap` of all ranks; empty if TRL does not compute both logprobs."""


class Updates(TrainerCallback):  # type: ignore[misc]
    """Writes the metrics of each update, and calls `close` after training.

    A run in which every episode fails ends here, on all ranks.
    """

    def __init__(self, config: GemConfig, trainer: Any, close: Callable[[], None]) -> None:
        self.config, self.trainer, self._close = config, trainer, close
        self.batches: list[Batch] = []
        """Batches of episodes whose update is not yet written."""
        self._log = UpdateLog.of(config, write=trainer.accelerator.is_main_process)

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.batches.clear()  # left by an interrupted run
        never, message = never_evaluated(self.config, self.trainer.args)
        if never:
            warnings.warn(f"{message}, or call trainer.evaluate()", stacklevel=1)

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, *, model: Any, **_: Any
    ) -> None:
        """Leave the weights as they are if an update has no trained tokens.

        With gradients of 0, Adam's momentum would move them. Without gradients, it skips them.
        """
        now = updates_of(self.trainer)
        current = [batch.metrics for batch in self.batches if batch.update == now]
        if current and not any(metrics.tokens for metrics in current):
            model.zero_grad(set_to_none=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not control.should_log:  # otherwise `on_log` follows, with the loss
            self._write()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        if "loss" in logs:
            self._write(loss=logs["loss"], grad_norm=logs.get("grad_norm"))

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._close()

    def _write(self, **trainer_metrics: float | None) -> None:
        """Write an update after the last optimizer step on its episodes."""
        done = updates_of(self.trainer)
        trained = [batch for batch in self.batches if batch.update < done]
        self.batches = [batch for batch in self.batches if batch.update >= done]
        for batch in trained:
            self._log.write(batch.update, batch.metrics, **batch.gap, **trainer_metrics)


def updates_of(trainer: Any) -> int:
    """Return the number of finished updates: batches of episodes that were trained on.

    TRL counts optimizer steps. With `steps_per_generation` or `num_iterations` above 1, it makes
    several steps per batch.
    """
    args = trainer.args
    steps = args.steps_per_generation * args.num_iterations // args.gradient_accumulation_steps
    return int(trainer.state.global_step // steps)
