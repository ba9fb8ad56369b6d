"""Trainer: ToyTrainer with gem's per-token advantages, and `train`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from toy_trainer import Sample, ToySettings, ToyTrainer, gather

from gem_core.adapter_kit.batch import check_sequence
from gem_core.adapter_kit.trainer_rollout import try_environment
from gem_core.adapter_kit.update_log import UpdateLog
from gem_core.training.metrics import BatchMetrics
from gem_core.types import Episode
from gem_toy.config import GemConfig, check_settings
from gem_toy.convert import per_token
from gem_toy.rollout import GemRollout

__all__ = ["GemToyTrainer", "check_batch", "put_advantages", "train"]


def train(config: GemConfig, settings: ToySettings) -> GemToyTrainer:
    """Train with the toy trainer and return it."""
    trainer = GemToyTrainer(config, settings)
    try:
        trainer.train()
    finally:
        trainer.gem_rollout.close()
    return trainer


class GemToyTrainer(ToyTrainer):
    """ToyTrainer with the advantages of the `GemConfig`'s estimator."""

    def __init__(
        self, config: GemConfig, settings: ToySettings, rollout: GemRollout | None = None
    ) -> None:
        check_settings(settings, config)  # before the model loads
        try_environment(config)
        self.gem_config, self.gem_rollout = config, rollout or GemRollout(config)
        super().__init__(
            settings, [{"seed": seed} for seed in config.train_seeds], self.gem_rollout
        )
        self.update_log = UpdateLog.of(config, write=self.rank == 0)
        self.batch_metrics = BatchMetrics()

    def compute_advantages(self, samples: Sequence[Sample]) -> None:
        self.batch_metrics = put_advantages(self.gem_config, samples)

    def collate(self, samples: Sequence[Sample]) -> dict[str, Any]:
        batch = super().collate(samples)
        check_batch(batch, samples)  # every batch, as close to the loss as possible
        return batch

    def loss(self, batch: dict[str, Any]) -> Any:
        if self.batch_metrics.tokens:  # of all ranks
            return super().loss(batch)
        # No parameter gets a gradient, so Adam skips its step: momentum would move the weights.
        return torch.zeros((), requires_grad=True)

    def log(self, metrics: dict[str, float]) -> None:
        self.update_log.write(self.step, self.batch_metrics, **metrics)


def put_advantages(config: GemConfig, samples: Sequence[Sample]) -> BatchMetrics:
    """Set the advantages of all samples; return the metrics of all ranks."""
    episodes: dict[int, Episode] = {
        sample.extra["number"]: sample.extra["episode"] for sample in samples
    }
    played = list(episodes.values())
    # Every rank must call `gather` equally often, also a rank whose episodes all failed.
    per_turn = dict(zip(episodes, config.compute_advantages(played, gather=gather)))
    for sample in samples:
        sample.advantages = per_token(sample.extra["sequence"], per_turn[sample.extra["number"]])
    return BatchMetrics.total(gather(BatchMetrics.of(played, list(per_turn.values()))))


def check_batch(batch: Mapping[str, Any], samples: Sequence[Sample]) -> None:
    """Raise `BatchMismatchError` unless the loss's tensors have the played ids and loss mask."""
    for i, (ids, mask) in enumerate(zip(batch["ids"].tolist(), batch["mask"].tolist())):
        sequence = samples[i].extra["sequence"]
        check_sequence(
            f"sequence {i} of the batch",
            ids,
            [int(m) for m in mask],
            sequence.ids,
            sequence.mask[1:],
        )
