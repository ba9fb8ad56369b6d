"""Trainer: verl's default trainers (V1), which also check their settings, log how episodes went, and know which rows belong
to one episode. `trainer.v1.trainer_mode` chooses them: gem_sync, gem_colocate_async, gem_separate_async.

verl is imported in the function that needs it: as it is imported, it loads gem's plugin, which needs the whole of this module.
"""

from __future__ import annotations

import logging
from typing import Any

import transfer_queue as tq
from omegaconf import open_dict

from gem_core.training.metrics import BatchMetrics
from gem_verl.advantage import Origin, origins, turns_of
from gem_verl.config import PREFIX, check_config, check_registered

__all__ = ["GemTrainer", "register_trainers", "total_of"]

_log = logging.getLogger("gem_verl")


class GemTrainer:
    """Mixin for a V1 trainer: `@register_trainer("gem_mine") class Mine(GemTrainer, PPOTrainerSync)`."""

    def __init__(self, config: Any) -> None:
        check_registered()
        with open_dict(config):
            # verl compares the mode with its own names all over its trainers
            config.trainer.v1.trainer_mode = str(config.trainer.v1.trainer_mode).removeprefix(PREFIX)
            config.trainer.v1.gem_trainer = True
        check_config(config)
        self._trained: list[bool] = []
        """Of each batch of a step, whether it has anything to train."""
        super().__init__(config)  # type: ignore[call-arg]

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Names the origin of each row to the estimator, which verl tells the prompt only."""
        real = [key for key, tag in zip(batch.keys, batch.tags) if not tag.get("is_padding", False)]
        stored = tq.kv_batch_get(keys=real, partition_id=batch.partition_id, select_fields=["extra_fields"])
        told = dict(zip(real, (getattr(fields, "data", fields)["gem"] for fields in stored["extra_fields"])))
        total = total_of(told)
        self._trained.append(total.turns > total.masked_turns)
        metrics.update({f"gem/{name}": value for name, value in total.means().items()})
        if not self._trained[-1]:
            metrics["gem/advantage_abs"] = 0.0
            return _credit_nothing(batch)
        rows = [_origin(key, told[key]["played_id"] if key in told else "") for key in batch.keys]
        with origins(rows):
            credited = super()._compute_advantage(batch, metrics)  # type: ignore[misc]
        metrics["gem/advantage_abs"] = _advantage_abs(batch)
        return credited

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """A batch without anything to train, all of it failed or masked, is no update: verl would divide by no tokens."""
        return super()._update_actor(batch, metrics) if self._trained[-1] else batch  # type: ignore[misc]

    def _compute_metrics(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        trained, self._trained = self._trained, []
        if any(trained):  # verl takes the largest of no advantages otherwise
            super()._compute_metrics(batch, metrics, *args, **kwargs)  # type: ignore[misc]


def total_of(told: dict[str, dict[str, Any]]) -> BatchMetrics:
    """How a batch went, of what the loops told with each row; an episode of several rows counts once. Failures are logged."""
    episodes = {_origin(key).session: known for key, known in told.items()}
    total = BatchMetrics.total(BatchMetrics(**known["metrics"]) for known in episodes.values())
    if total.failed:
        failures = sorted({known["failure"] for known in episodes.values() if known["failure"]})
        _log.warning("%d of %d episodes are failed and left out: %s", total.failed, total.episodes, "; ".join(failures[:3]))
    return total


def _advantage_abs(batch: Any) -> float:
    """The mean of |A| over the trained turns of a batch; within a turn, A differs by token with estimators of verl's own only."""
    fields = ["advantages", "response_mask"]
    stored = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields).to_padded_tensor()
    rows = zip(stored["advantages"].abs(), turns_of(stored["response_mask"]))
    sizes = [float(row[start:end].mean()) for row, turns in rows for start, end in turns]
    return sum(sizes) / len(sizes) if sizes else 0.0


def _credit_nothing(batch: Any) -> Any:
    """verl refuses to credit a batch without a token to train: all failed, or masked."""
    stored = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["response_mask"])
    stored["advantages"] = stored["returns"] = stored.pop("response_mask").float()  # which is 0 throughout
    return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=stored)


def register_trainers() -> None:
    """The three trainers of verl, each with the mixin."""
    from verl.trainer.ppo.v1 import PPOTrainerColocateAsync, PPOTrainerSeparateAsync, PPOTrainerSync
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY, register_trainer

    for name, trainer in (
        ("sync", PPOTrainerSync),
        ("colocate_async", PPOTrainerColocateAsync),
        ("separate_async", PPOTrainerSeparateAsync),
    ):
        if PREFIX + name not in TRAINER_REGISTRY:
            register_trainer(PREFIX + name)(type(f"Gem{trainer.__name__}", (GemTrainer, trainer), {}))


def _origin(key: str, played_id: str = "") -> Origin:
    """verl's keys read {uid}_{session}_{row}."""
    session, _, number = key.rpartition("_")
    return Origin(session, int(number), played_id)
