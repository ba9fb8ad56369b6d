"""What the TRL tests share: a small trainer on the tiny model, on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # rollout_func is announced as experimental at every start

import torch

from gem_core import Env, register
from gem_core.env.registry import environments

ECHO = "test:Echo-v0"


class Echo(Env):
    """Pays by a sum over what was said, for one to three turns, so that any model earns ragged rewards."""

    execution = "inline"
    action_example = "anything"

    def on_reset(self, options: Any) -> Any:
        self.turns = 1 + self.seed % 3
        return f"Say anything. Start {self.seed}.", {}

    def on_step(self, action: str) -> Any:
        over, said = self.turn + 1 >= self.turns, sum(action.encode())
        return f"You said {len(action)} characters.", (said % 7) / 7.0, over, False, {"success": said % 2 == 0}


class Moody(Echo):
    """Breaks in its second turn where the seed is odd."""

    def on_step(self, action: str) -> Any:
        if self.seed % 2 and self.turn == 1:
            raise RuntimeError("in a bad mood")
        return super().on_step(action)

    def on_reset(self, options: Any) -> Any:
        observation, info = super().on_reset(options)
        self.turns = 2
        return observation, info


@pytest.fixture(scope="session", autouse=True)
def environments_for_tests() -> Iterator[None]:
    """Registered for this session only."""
    torch.set_num_threads(1)
    register(ECHO, Echo)
    register("test:Moody-v0", Moody)
    yield
    environments.remove(ECHO)
    environments.remove("test:Moody-v0")


@pytest.fixture
def make_trainer(tmp_path: Path) -> Callable[..., Any]:
    """A trainer that makes one step: `make_trainer(spec, trainer_class, **GRPOConfig fields)`."""

    def make(spec: Any, trainer_class: Any = None, **config: Any) -> Any:
        from trl import GRPOConfig

        from gem_core.policies.tiny import load_tiny
        from gem_trl import GemGRPOTrainer

        model, tokenizer = load_tiny()
        given = {
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
            **config,
        }
        return (trainer_class or GemGRPOTrainer)(
            model=model, args=GRPOConfig(**given), processing_class=tokenizer, **spec.arguments()
        )

    return make
