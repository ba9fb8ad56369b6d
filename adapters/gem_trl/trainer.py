"""Trainer: gem's advantages in GRPOTrainer, one number per completion token, and `train`.

TRL computes advantages inside `_generate_and_score_completions` and offers no hook for them; its loss takes a (B, T) tensor by
design. So that one method is overridden: it calls TRL's, then replaces `advantages`. Everything else is TRL's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate.utils import gather_object
from trl import GRPOTrainer

from gem_core.adapter_kit.batch import check_sequence, mean_abs_advantage
from gem_core.errors import BatchMismatchError, ConfigError, MissingDependencyError
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
    """Train with TRL. `settings`: keyword arguments of GRPOTrainer, such as `model` and `args`. Returns the trainer."""
    trainer = GemGRPOTrainer(**settings, **trainer_kwargs(config))
    try:
        trainer.train()
    finally:
        trainer.gem_rollout.close()
    return trainer


def trainer_kwargs(config: GemConfig) -> dict[str, Any]:
    """`train_dataset`, `rollout_func`, `reward_funcs`, and `eval_dataset` where there are seeds for it: keyword arguments of
    GemGRPOTrainer, or of TRL's own GRPOTrainer, which then uses its group-relative advantages."""
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
                "gem's advantages need gem's rollout function; pass **trainer_kwargs(config) to the trainer (rollout_func: "
                f"{type(rollout).__name__})"
            )
        self.gem_config, self.gem_rollout = rollout.config, rollout
        rollout.prepare(self)

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        return put_advantages(self, inputs, batch)


class GemGRPOTrainer(GemAdvantages, GRPOTrainer):
    """GRPOTrainer with per-turn advantages by the estimator its `GemConfig` names."""


def put_advantages(
    trainer: Any, inputs: Sequence[Mapping[str, Any]], batch: dict[str, Any]
) -> dict[str, Any]:
    """Replace TRL's advantages by gem's: statistics over all ranks, one number per token, 0 where nothing is trained."""
    episodes, sequences = (
        [row["gem_episode"] for row in inputs],
        [row["gem_sequence"] for row in inputs],
    )
    check_batch(batch, sequences)
    per_turn = trainer.gem_config.compute_advantages(episodes, gather=_gather)
    ids = batch["completion_ids"]
    advantages = torch.zeros(ids.shape, dtype=torch.float32, device=ids.device)
    for i, (sequence, numbers) in enumerate(zip(sequences, per_turn)):
        tokens = torch.tensor(per_token(sequence, numbers), dtype=torch.float32, device=ids.device)
        advantages[i, : len(tokens)] = tokens
    batch["advantages"] = advantages
    advantage_abs = mean_abs_advantage(episodes, per_turn, _gather)
    trainer._metrics["train" if trainer.model.training else "eval"]["gem/advantage_abs"].append(
        advantage_abs
    )
    if trainer.model.training and trainer.gem_rollout.batches:
        trainer.gem_rollout.batches[-1].advantage_abs = advantage_abs
    _show_advantages(trainer, per_turn)
    return batch


def check_batch(batch: Mapping[str, Any], sequences: Sequence[TokenSequence]) -> None:
    """Raise `BatchMismatchError` unless the batch for the loss holds the ids and the loss mask that were played."""
    for key in ("completion_ids", "completion_mask", "tool_mask", "advantages"):
        if key not in batch:
            raise BatchMismatchError(
                f"TRL's batch has no {key!r} (it has {sorted(batch)}), without which the loss would train on observation tokens; "
                "use a version of TRL the adapter supports, without patches to its batches"
            )
    masks = (batch["completion_mask"] * batch["tool_mask"]).tolist()
    for i, (sequence, ids, mask) in enumerate(
        zip(sequences, batch["completion_ids"].tolist(), masks)
    ):
        check_sequence(f"sequence {i} of TRL's batch", ids, mask, *completion_of(sequence))


def _gather(value: Any) -> list[Any]:
    gathered: list[Any] = gather_object([value])
    return gathered


def _show_advantages(trainer: Any, per_turn: Sequence[Sequence[float]]) -> None:
    """TRL's table of completions shows one advantage each; show the first turn's instead of TRL's own."""
    first = [numbers[0] if numbers else 0.0 for numbers in per_turn]
    shown = [advantage for part in _gather(first) for advantage in part]
    log = trainer._logs["advantages"]
    for _ in range(min(len(shown), len(log))):
        log.pop()
    log.extend(shown)


def _dataset(config: GemConfig, seeds: Sequence[int]) -> Any:
    """One prompt per seed, which carries it."""
    try:
        from datasets import Dataset
    except ImportError as error:
        raise MissingDependencyError("a TRL data set", "trl", str(error)) from error
    content = config.env_id
    return Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": f"{content} #{seed}", "gem": {"seed": seed}}]}
            for seed in seeds
        ]
    )
