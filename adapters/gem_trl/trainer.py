"""Trainer: runs TRL with gem's per-turn advantages.

TRL computes advantages in `_generate_and_score_completions` and has no hook for them. gem overrides
that method: it calls TRL's own, then replaces `advantages` with a tensor of one number per token,
which TRL's loss also accepts. Everything else is TRL's own code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate.utils import gather_object
from trl import GRPOTrainer

from gem_core.adapter_kit.batch import check_sequence
from gem_core.errors import BatchMismatchError, ConfigError, MissingDependencyError
from gem_core.training.metrics import BatchMetrics
from gem_core.training.sequences import TokenSequence
from gem_trl.config import GemConfig
from gem_trl.convert import completion_of, episode_return, per_token
from gem_trl.rollout import GemRollout

__all__ = [
    "GemAdvantages",
    "GemGRPOTrainer",
    "check_batch",
    "put_advantages",
    "train",
    "trainer_kwargs",
]


def train(config: GemConfig, settings: Mapping[str, Any]) -> GemGRPOTrainer:
    """Train with TRL to the end and return the trainer.

    `settings`: keyword arguments of GRPOTrainer, such as `model` and `args`.
    """
    trainer = GemGRPOTrainer(**settings, **trainer_kwargs(config))
    try:
        trainer.train()
    finally:
        trainer.gem_rollout.close()
    return trainer


def trainer_kwargs(config: GemConfig) -> dict[str, Any]:
    """Return the keyword arguments of GemGRPOTrainer that follow from the config.

    They are `train_dataset`, `rollout_func`, `reward_funcs` and, if the config has seeds to
    evaluate on, `eval_dataset`. TRL's own GRPOTrainer accepts them too; it then trains the same
    episodes with its group-relative advantages.
    """
    kwargs = {
        "train_dataset": _dataset(config, config.train_seeds),
        "rollout_func": GemRollout(config),
        "reward_funcs": [episode_return],
    }
    if config.held_out_seeds:
        kwargs["eval_dataset"] = _dataset(config, config.held_out_seeds)
    return kwargs


class GemAdvantages:
    """Mixin for subclasses of GRPOTrainer: `class MyTrainer(GemAdvantages, MyGRPOTrainer)`."""

    gem_config: GemConfig
    gem_rollout: GemRollout

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        rollout = getattr(self, "rollout_func", None)
        if not isinstance(rollout, GemRollout):
            raise ConfigError(
                "gem's advantages need gem's rollout function; pass **trainer_kwargs(config) to "
                f"the trainer. Got: rollout_func of type {type(rollout).__name__}"
            )
        self.gem_config, self.gem_rollout = rollout.config, rollout
        rollout.prepare(self)

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        return put_advantages(self, inputs, batch)


class GemGRPOTrainer(GemAdvantages, GRPOTrainer):
    """GRPOTrainer with per-turn advantages by the estimator of its `GemConfig`."""


def put_advantages(
    trainer: Any, inputs: Sequence[Mapping[str, Any]], batch: dict[str, Any]
) -> dict[str, Any]:
    """Replace TRL's advantages with gem's: one number per token, 0 on untrained tokens.

    Statistics cover all ranks. Returns the batch.
    """
    episodes = [row["gem_episode"] for row in inputs]
    sequences = [row["gem_sequence"] for row in inputs]
    check_batch(batch, sequences)
    per_turn = trainer.gem_config.compute_advantages(episodes, gather=_gather)
    ids = batch["completion_ids"]
    advantages = torch.zeros(ids.shape, dtype=torch.float32, device=ids.device)
    for i, (sequence, numbers) in enumerate(zip(sequences, per_turn)):
        tokens = torch.tensor(per_token(sequence, numbers), dtype=torch.float32, device=ids.device)
        advantages[i, : len(tokens)] = tokens
    batch["advantages"] = advantages
    metrics = BatchMetrics.total(_gather(BatchMetrics.of(episodes, per_turn)))
    mode = "train" if trainer.model.training else "eval"
    for name, value in metrics.means().items():
        if name.endswith("advantage_abs"):  # the reward function logs the others
            trainer._metrics[mode][f"gem/{name}"].append(value)
    if trainer.model.training and trainer.gem_rollout.batches:
        trainer.gem_rollout.batches[-1].metrics = metrics
    _show_advantages(trainer, per_turn)
    return batch


def check_batch(batch: Mapping[str, Any], sequences: Sequence[TokenSequence]) -> None:
    """Raise `BatchMismatchError` unless the batch holds the played ids and loss masks."""
    for key in ("completion_ids", "completion_mask", "tool_mask", "advantages"):
        if key not in batch:
            raise BatchMismatchError(
                f"TRL's batch has no {key!r} (its keys: {sorted(batch)}); use a version of TRL "
                "that the adapter supports, and remove patches that change its batches"
            )
    masks = (batch["completion_mask"] * batch["tool_mask"]).tolist()
    for i, (sequence, ids, mask) in enumerate(
        zip(sequences, batch["completion_ids"].tolist(), masks)
    ):
        check_sequence(f"sequence {i} of TRL's batch", ids, mask, *completion_of(sequence))


def _gather(value: Any) -> list[Any]:
    """Collect a value from every rank."""
    gathered: list[Any] = gather_object([value])
    return gathered


def _show_advantages(trainer: Any, per_turn: Sequence[Sequence[float]]) -> None:
    """Show the first turn's advantage in TRL's table of completions, which has room for one."""
    first = [numbers[0] if numbers else 0.0 for numbers in per_turn]
    shown = [advantage for part in _gather(first) for advantage in part]
    log = trainer._logs["advantages"]
    for _ in range(min(len(shown), len(log))):
        log.pop()
    log.extend(shown)


def _dataset(config: GemConfig, seeds: Sequence[int]) -> Any:
    """Return a dataset with one prompt per seed. Each prompt carries its seed."""
    try:
        from datasets import Dataset
    except ImportError as error:
        raise MissingDependencyError("a TRL dataset", "trl", str(error)) from error
    content = config.env_id
    return Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": f"{content} #{seed}", "gem": {"seed": seed}}]}
            for seed in seeds
        ]
    )
