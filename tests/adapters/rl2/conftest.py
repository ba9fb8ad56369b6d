"""Fixtures of the RL2 tests: RL2 without a GPU, and its real rollout with server and router."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TQDM_DISABLE"] = "1"
# otherwise Ray warns at every start that 0 will become its default
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
sys.path.insert(0, str(Path(__file__).parent))

import rl2_on_cpu
import torch
from omegaconf import OmegaConf
from rl2_worlds import FICKLE, SLOW, Fickle, Slow
from worlds import ECHO, registered

from gem_core import register
from gem_core.env.registry import environments
from gem_core.policies.tiny import tiny_model_path
from gem_rl2 import GemConfig, compose
from gem_rl2.config import longest_sequence

rl2_on_cpu.prepare()


@pytest.fixture(scope="session", autouse=True)
def environments_for_tests() -> Iterator[None]:
    """Register the test environments for this session."""
    with registered():
        register(SLOW, Slow)
        register(FICKLE, Fickle)
        yield
        environments.remove(SLOW)
        environments.remove(FICKLE)


@pytest.fixture(scope="session")
def settings_for() -> Callable[..., Any]:
    """Return `settings_for(*overrides)`: RL2's settings for a small run on the tiny model."""

    def make(*overrides: str) -> Any:
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

    return make


@pytest.fixture(scope="session")
def start_rollout(
    settings_for: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], tuple[Any, Any]]:
    """Return a function that starts RL2's server and router; it returns (settings, rollout)."""
    import wandb

    from gem_rl2.rollout import GemRollout
    from gem_rl2.trainer import prepare_settings

    wandb.log = lambda *args, **kwargs: None  # RL2's own trainer does this without wandb
    if not torch.distributed.is_initialized():
        rl2_on_cpu.start_gloo()

    def start() -> tuple[Any, Any]:
        settings, config = settings_for(), GemConfig(ECHO, max_turn_tokens=6)
        prepare_settings(settings, config, tmp_path_factory.mktemp("data"))
        OmegaConf.resolve(settings)
        return settings, GemRollout(settings.rollout, config, longest_sequence(settings))

    return start


@pytest.fixture(scope="session")
def running(start_rollout: Callable[[], tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """Yield (settings, RL2's real rollout with its server and router)."""
    settings, rollout = start_rollout()
    yield settings, rollout
    rollout.close()


@pytest.fixture
def play(running: tuple[Any, Any]) -> Callable[..., Any]:
    """Return `play(env_id, seeds, step=1, train=True, **config_fields)`.

    It returns (RL2's batch, the played episodes, the rollout's `RolloutState`).
    """
    from gem_rl2.rollout import RolloutState

    _, rollout = running

    class Watched(RolloutState):
        played: list[Any]

        def finish(self, episode: Any, train: bool) -> None:
            self.played.append(episode)
            super().finish(episode, train)

    def play_batch(
        env_id: str, seeds: list[int], *, step: int = 1, train: bool = True, **fields: Any
    ) -> Any:
        config = GemConfig(env_id, **{"max_turn_tokens": 6, **fields})
        rollout.state = Watched(config, rollout.state.max_context)
        rollout.state.played = []
        batch = rollout([{"extra_info": {"seed": seed}} for seed in seeds], train, step)
        # RL2 starts and ends episodes in any order
        episodes = sorted(rollout.state.played, key=lambda e: seeds.index(e.seed))
        return batch, episodes, rollout.state

    return play_batch
