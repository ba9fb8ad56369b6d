"""Fixtures of the TRL tests: a small trainer on the tiny model, on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
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
def trainer_settings(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Return `trainer_settings(**GRPOConfig fields)`: arguments of a trainer of one step."""

    def make(**grpo_config: Any) -> dict[str, Any]:
        from trl import GRPOConfig

        from gem_core.policies.tiny import load_tiny

        model, tokenizer = load_tiny()
        fields = {
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
        return {"model": model, "args": GRPOConfig(**fields), "processing_class": tokenizer}

    return make


@pytest.fixture
def make_trainer(trainer_settings: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
    """Return a function that makes a trainer.

    `make_trainer(config, trainer_class, further keyword arguments, **GRPOConfig fields)`
    """

    def make(config: Any, trainer_class: Any = None, kwargs: Any = None, **grpo_config: Any) -> Any:
        from gem_trl import GemGRPOTrainer, trainer_kwargs

        own = {**trainer_settings(**grpo_config), **trainer_kwargs(config)}
        return (trainer_class or GemGRPOTrainer)(**{**own, **(kwargs or {})})

    return make


@pytest.fixture
def with_logprobs() -> Callable[..., None]:
    """Return `with_logprobs(trainer, unscored)`: the trainer samples as with vLLM.

    All logprobs are -1; the first tokens of some completions have those of `unscored` instead.
    """

    def change(trainer: Any, unscored: Sequence[Any] = ()) -> None:
        generate, first = trainer._generate_single_turn, list(unscored)

        @wraps(generate)
        def generate_with_logprobs(*args: Any, **kwargs: Any) -> Any:
            trainer.use_vllm = False
            completions, _ = generate(*args, **kwargs)
            trainer.use_vllm = True
            logprobs: list[list[Any]] = [[-1.0] * len(ids) for ids in completions]
            for row in logprobs:
                if first:
                    row[0] = first.pop()
            return completions, logprobs

        trainer._generate_single_turn = generate_with_logprobs
        trainer.vllm_generation = SimpleNamespace(sync_weights=lambda: None)
        trainer.use_vllm, trainer._last_loaded_step = True, -1  # TRL corrects for the logprobs

    return change
