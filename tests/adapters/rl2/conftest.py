"""What the RL2 tests share: RL2 on a machine without a GPU (`on_cpu.py`), and its real rollout with a server and the router."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TQDM_DISABLE"] = "1"

import on_cpu
import torch
from omegaconf import OmegaConf

from gem_core import Env, register
from gem_core.env.registry import environments
from gem_core.policies.tiny import tiny_model_path
from gem_core.records.file import read_episodes
from gem_rl2 import GemSpec, compose, start_process_group
from gem_rl2.config import longest_row, prepare_config

on_cpu.prepare()

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

    def on_reset(self, options: Any) -> Any:
        observation, info = super().on_reset(options)
        self.turns = 2
        return observation, info

    def on_step(self, action: str) -> Any:
        if self.seed % 2 and self.turn == 1:
            raise RuntimeError("in a bad mood")
        return super().on_step(action)


class Slow(Echo):
    """Takes two seconds for a step where the seed is 0."""

    execution = "thread"

    def on_step(self, action: str) -> Any:
        time.sleep(2.0 if self.seed == 0 else 0.0)
        return super().on_step(action)


class Fickle(Echo):
    """Says the same whatever the seed; pays 1 to whoever is the first to play an even one, and 0 to everybody else."""

    paid: ClassVar[set[int]] = set()

    def on_reset(self, options: Any) -> Any:
        return "Say anything.", {}

    def on_step(self, action: str) -> Any:
        first = self.seed % 2 == 0 and self.seed not in self.paid
        self.paid.add(self.seed)
        return "", float(first), True, False, {}


MADE = {ECHO: Echo, "test:Moody-v0": Moody, "test:Slow-v0": Slow, "test:Fickle-v0": Fickle}


@pytest.fixture(scope="session", autouse=True)
def environments_for_tests() -> Iterator[None]:
    """Registered for this session only."""
    for name, env in MADE.items():
        register(name, env)
    yield
    for name in MADE:
        environments.remove(name)


def configuration(*overrides: str) -> Any:
    """RL2's configuration for a small run on the tiny model."""
    return compose(
        [
            f"actor.model_name={tiny_model_path()}",
            "actor.max_length_per_device=512",
            "actor.lr=1e-3",
            "train_data.prompts_per_rollout=8",
            "rollout.train_sampling_params.max_new_tokens=6",
            "rollout.test_sampling_params.temperature=1.0",
            "trainer.use_wandb=false",
            *overrides,
        ]
    )


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    """(configuration, RL2's real rollout), with its server and its router."""
    import wandb

    from gem_rl2.rollout import GemRollout

    wandb.log = lambda *args, **kwargs: None  # as RL2's own trainer does without wandb
    if not torch.distributed.is_initialized():
        start_process_group()
    config, spec = configuration(), GemSpec(ECHO, max_turn_tokens=6)
    prepare_config(config, spec, tmp_path_factory.mktemp("data"))
    OmegaConf.resolve(config)
    rollout = GemRollout(config.rollout, spec, longest_row(config))
    yield config, rollout
    rollout.close()


@pytest.fixture
def play(running: tuple[Any, Any], tmp_path: Path) -> Callable[..., Any]:
    """`play(env_id, seeds, step=1, train=True, **spec)`: (RL2's batch, the episodes, what was played with)."""
    from gem_rl2.rollout import Plays

    _, rollout = running

    def go(env_id: str, seeds: list[int], *, step: int = 1, train: bool = True, **fields: Any) -> Any:
        record = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        spec = GemSpec(env_id, record=str(record), **{"max_turn_tokens": 6, **fields})
        rollout.plays = Plays(spec, max_context=rollout.plays.max_context)
        found = rollout([{"extra_info": {"seed": seed}} for seed in seeds], train, step)
        episodes = sorted(read_episodes(record), key=lambda e: seeds.index(e.seed))  # RL2 starts and ends them in any order
        return found, episodes, rollout.plays

    return go
