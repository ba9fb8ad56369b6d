"""Trainer: runs TRL with gem's per-turn advantages.

TRL plays and computes advantages in `_generate_and_score_completions` and has no hook for them. gem
overrides that method: it plays the episodes, calls TRL's own method on their sequences, and
replaces `advantages` with a tensor of one number per token, which TRL's loss also accepts.
Everything else is TRL's own code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from trl import GRPOTrainer
from trl.extras.profiling import profiling_context

from gem_core.adapter_kit.batch import as_trained, check_sequence
from gem_core.adapter_kit.settings import reject
from gem_core.adapter_kit.trainer_rollout import try_environment
from gem_core.errors import BatchMismatchError, ConfigError, MissingDependencyError
from gem_core.training.metrics import BatchMetrics
from gem_core.training.sequences import TokenSequence
from gem_core.types import Episode
from gem_trl.config import GemConfig, never_evaluated
from gem_trl.convert import (
    Row,
    completion_of,
    episode_return,
    padding_row,
    per_token,
    rows_of,
    to_batch,
    turn_ratios,
)
from gem_trl.logs import gather, log_batch, log_lengths, log_table, separate_table
from gem_trl.rollout import GemRollout, stop_ids
from gem_trl.updates import updates_of

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

    `settings`: keyword arguments of GRPOTrainer, such as `model` and `args`; its `reward_funcs` are
    added to gem's. Training resumes from the checkpoint `args.resume_from_checkpoint`, if that is
    set.
    """
    reject([never_evaluated(config, settings.get("args"))])
    kwargs, own = dict(settings), trainer_kwargs(config)
    further = kwargs.pop("reward_funcs", None) or []
    for function in further if isinstance(further, (list, tuple)) else [further]:
        if function is not episode_return:
            own["reward_funcs"].append(function)
    if twice := sorted(kwargs.keys() & own.keys()):
        raise ConfigError(
            f"settings has {', '.join(twice)}, which GemConfig already determines; remove it, or "
            "build GemGRPOTrainer with your own values instead of calling train()"
        )
    trainer = GemGRPOTrainer(**kwargs, **own)
    try:
        trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint)
    finally:
        trainer.gem_rollout.close()
    return trainer


def trainer_kwargs(config: GemConfig) -> dict[str, Any]:
    """Return the keyword arguments of GemGRPOTrainer that follow from the config.

    They are `train_dataset`, `rollout_func`, `reward_funcs` and, if the config has seeds to
    evaluate on, `eval_dataset`. TRL's own GRPOTrainer accepts them too; it then trains the same
    episodes with its group-relative advantages. Raises `EnvError` if one step of the environment
    fails, before a model is loaded.
    """
    try_environment(config)
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

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        order = cls.__mro__
        if GRPOTrainer in order and order.index(GRPOTrainer) < order.index(GemAdvantages):
            raise ConfigError(
                f"{cls.__name__} would train TRL's own advantages: GemAdvantages comes after a "
                f"trainer; write class {cls.__name__}(GemAdvantages, ...)"
            )

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
        rollout, update = self.gem_rollout, updates_of(self)
        _sync_weights(self)
        episodes = rollout.play([row["prompt"] for row in inputs], self)
        try:
            rollout.rows = _rows(self, episodes)
            rollout.played = to_batch(rollout.rows)
            # a further row repeats the prompt of its episode; TRL writes into each dictionary
            repeated = [dict(inputs[max(row.number, 0)]) for row in rollout.rows]
            score = super()._generate_and_score_completions  # type: ignore[misc]
            with separate_table(self) as table:
                batch: dict[str, Any] = score(repeated)
            per_turn = put_advantages(self, rollout.rows, batch)
            log_table(self, table, rollout.rows, per_turn)
            log_lengths(self, rollout.rows, stop_ids(self))
        except BaseException:
            rollout.played = None
            rollout.record(episodes)  # without advantages: no played episode is lost
            raise
        training = self.model.training  # type: ignore[attr-defined]
        if not training and rollout.evaluation is not None:
            rollout.evaluation.add(episodes, per_turn)
        rollout.record(
            as_trained(episode, advantages, update) if training else episode
            for episode, advantages in zip(episodes, per_turn)
        )
        return batch


class GemGRPOTrainer(GemAdvantages, GRPOTrainer):
    """GRPOTrainer with per-turn advantages by the estimator of its `GemConfig`."""


def put_advantages(trainer: Any, rows: Sequence[Row], batch: dict[str, Any]) -> list[list[float]]:
    """Replace TRL's advantages with gem's: one number per token, 0 on untrained tokens.

    Statistics cover all ranks. Returns the advantages of this rank's episodes, by turn.
    """
    check_batch(batch, [row.sequence for row in rows])
    config: GemConfig = trainer.gem_config
    episodes = [row.episode for row in rows if row.episode is not None]
    per_turn = config.compute_advantages(episodes, gather=gather)
    ids = batch["completion_ids"]
    advantages = torch.zeros(ids.shape, dtype=torch.float32, device=ids.device)
    for i, row in enumerate(rows):
        if row.number >= 0:
            tokens = per_token(row.sequence, per_turn[row.number])
            advantages[i, : len(tokens)] = torch.tensor(tokens, dtype=torch.float32)
    batch["advantages"] = advantages
    if config.importance_per_turn:
        batch["importance_sampling_ratio"] = turn_ratios(trainer, rows, batch)
    log_batch(trainer, BatchMetrics.of(episodes, per_turn), batch)
    return per_turn


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


def _rows(trainer: Any, episodes: Sequence[Episode]) -> list[Row]:
    """Return the rows of a batch: the first row of each episode, further rows, and padding.

    All ranks have equally many, in whole groups, which TRL splits into `steps_per_generation`
    equal parts.
    """
    end_id = trainer.gem_rollout.prepare(trainer).turn_end or 0
    first, further = rows_of(episodes, end_id)
    training = trainer.model.training
    group = trainer.num_generations if training else trainer.num_generations_eval
    step = math.lcm(group, trainer.args.steps_per_generation if training else 1)
    size = -(-max(gather(len(further))) // step) * step
    return first + further + [padding_row(end_id)] * (size - len(further))


def _sync_weights(trainer: Any) -> None:
    """Give vLLM the current weights, as TRL does before it calls a rollout function."""
    if trainer.use_vllm and trainer.state.global_step != trainer._last_loaded_step:
        with profiling_context(trainer, "sync_weights"):  # as TRL does
            trainer.vllm_generation.sync_weights()
        trainer._last_loaded_step = trainer.state.global_step


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
