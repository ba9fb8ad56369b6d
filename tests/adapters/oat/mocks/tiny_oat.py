"""Tiny oat: arguments for one learner, the tiny model and batches of 16 transitions."""

from __future__ import annotations

from typing import Any

from oat.algorithms.ppo import PPOArgs

from gem_core.policies import tiny_model_path
from gem_oat import GemConfig, ppo_kwargs


def oat_args(config: GemConfig, **changes: Any) -> Any:
    """Return oat's arguments for a config, with changes."""
    settings = {
        "pretrain": str(tiny_model_path()),
        "gpus": 1,
        "collocate": True,
        "bf16": False,
        "flash_attn": False,
        "beta": 0.0,
        "max_model_len": 512,
        "rollout_batch_size": 16,
        "rollout_batch_size_per_device": 16,
        "train_batch_size": 16,
        "max_train": 64,
    }
    return PPOArgs(**{**settings, **ppo_kwargs(config), **changes})
