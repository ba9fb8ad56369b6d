"""Fixtures of the TRL tests: a small trainer on the tiny model, on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # TRL warns that rollout_func is experimental

import torch
from worlds import registered


@pytest.fixture(scope="session", autouse=True)
def environments_for_tests() -> Iterator[None]:
    """Register the test environments for this session only."""
    torch.set_num_threads(1)
    with registered():
        yield


@pytest.fixture
def make_trainer(tmp_path: Path) -> Callable[..., Any]:
    """Return a function that makes a trainer, by default for one step.

    `make_trainer(config, trainer_class, trainer_kwargs to replace, **GRPOConfig fields)`
    """

    def make(config: Any, trainer_class: Any = None, kwargs: Any = None, **grpo_config: Any) -> Any:
        from trl import GRPOConfig

        from gem_core.policies.tiny import load_tiny
        from gem_trl import GemGRPOTrainer, trainer_kwargs

        model, tokenizer = load_tiny()
        settings = {
            "output_dir": str(tmp_path / "trainer"),
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "per_device_train_batch_size": 4,
            "num_generations": 2,
            "max_steps": 1,
            "max_completion_length": 128,
            "learning_rate": 1e-3,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            **grpo_config,
        }
        all_kwargs = {**trainer_kwargs(config), **(kwargs or {})}
        return (trainer_class or GemGRPOTrainer)(
            model=model, args=GRPOConfig(**settings), processing_class=tokenizer, **all_kwargs
        )

    return make
