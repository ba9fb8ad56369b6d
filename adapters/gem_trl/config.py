"""Config: the environment to train on in TRL, and the TRL settings that do not fit it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from gem_core.adapter_kit.declaration import require
from gem_core.adapter_kit.settings import long_turns, reject
from gem_core.errors import ConfigError
from gem_core.training.config import TrainingConfig
from gem_core.types import Task
from gem_trl import ADAPTER
from gem_trl.convert import episode_return

__all__ = ["GemConfig", "check_settings"]

_ONE_ADVANTAGE_PER_SEQUENCE = ("GMPOTrainer",)


@dataclass
class GemConfig(TrainingConfig):
    """An environment for TRL: `GemGRPOTrainer(model=..., args=..., **trainer_kwargs(config))`.

    Each seed becomes one prompt of the data set, which TRL plays `num_generations` times.
    """

    adapter = ADAPTER

    batch_wait: float = 0.05
    """Seconds a generation batch waits for episodes whose environment is still busy."""
    lockstep: bool | None = None
    """Whether all ranks generate together, with equal calls and sizes; None: wherever the engine is collective."""

    def task_of(self, prompt: Any, index: int = 0) -> Task:
        """The task of a prompt, which carries its seed because TRL passes nothing else to a rollout function."""
        carried = (
            prompt[-1].get("gem")
            if isinstance(prompt, list) and prompt and isinstance(prompt[-1], dict)
            else None
        )
        if not carried or "seed" not in carried:
            raise ConfigError(
                "a prompt carries no gem task; train on trainer_kwargs(config)['train_dataset'], or give each prompt's last "
                f"message a key 'gem': {{'seed': 7}}. Given: {str(prompt)[:120]}"
            )
        return self.task(int(carried["seed"]), index)


def check_settings(settings: Any, config: GemConfig) -> None:
    """Raise `ConfigError` for all settings of a trainer that would break gem's promises, with the remedies. `settings`: the
    trainer, which holds them."""
    require(ADAPTER)
    trainer = settings
    args, per_turn = trainer.args, hasattr(trainer, "gem_config")
    weighted = zip(trainer.reward_funcs, trainer.reward_weights.tolist())
    others = [
        getattr(f, "__name__", type(f).__name__)
        for f, weight in weighted
        if f is not episode_return and weight
    ]
    reject(
        [
            (
                args.mask_truncated_completions,
                "mask_truncated_completions=True drops a whole episode because its last turn was cut; set it to False, and "
                "GemConfig(on_cut='mask') to mask only the cut turn",
            ),
            (
                bool(getattr(trainer, "tools", None))
                or getattr(trainer, "environments", None) is not None,
                "GRPOTrainer(tools=...) and environment_factory make TRL ignore the loss mask of a rollout function; remove "
                "them, and name tools in GemConfig(tools=...)",
            ),
            (
                per_turn and bool(getattr(args, "use_liger_kernel", False)),
                "use_liger_kernel=True takes one advantage per sequence; set it to False for per-turn advantages",
            ),
            (
                per_turn
                and any(
                    base.__name__ in _ONE_ADVANTAGE_PER_SEQUENCE for base in type(trainer).__mro__
                ),
                f"{type(trainer).__name__} assumes one advantage per sequence; use GRPOTrainer for per-turn advantages",
            ),
            (
                per_turn and args.scale_rewards != "group",
                f"scale_rewards={args.scale_rewards!r} is for TRL's own advantages, which gem's replace; remove it, and use "
                "GemConfig(advantage='grpo', estimator_kwargs={'scale': False}) for advantages that are not scaled",
            ),
            (
                per_turn and bool(others),
                f"the rewards of {', '.join(others)} would not be trained on: per-turn advantages use the environment's rewards. "
                "Add them in a wrapper around the environment, or set their reward_weights to 0 to only log them",
            ),
            (
                not _loss_reads_mask(type(trainer)),
                f"the loss of {type(trainer).__name__} does not read `tool_mask`, so it would train on observation tokens; use "
                "TRL's own GRPOTrainer, or a version of the patch that reads it",
            ),
            long_turns(config, args.max_completion_length, "max_completion_length"),
        ]
    )


def _loss_reads_mask(trainer_class: type) -> bool:
    """Whether the loss, or one it calls, reads the loss mask. A loss without source code passes: `check_batch` still compares
    every batch."""
    for base in trainer_class.__mro__:
        if "_compute_loss" in vars(base):
            try:
                source = inspect.getsource(vars(base)["_compute_loss"])
            except (OSError, TypeError):
                return True
            if "tool_mask" in source:
                return True
            if "super()" not in source:
                return False
    return False
