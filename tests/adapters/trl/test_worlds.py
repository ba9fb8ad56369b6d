"""Every family of worlds trains two updates with the real GRPOTrainer."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gem_core import Wrapper, register_wrapper
from gem_core.env.wrapper_stack import wrappers
from gem_core.records.file import read_episodes
from gem_trl import GemConfig

QUICK = "maze:Random-v0-easy"
FAMILIES = (
    "household:PickAndPlace-v0",
    "sql:Query-v0-simple",
    "tool:Academia-v0",
    "wiki:WikiGame-v0-easy",
    "webshop:WebShop-v0",
    "search:MultiHop-v0-hops2",
    "web:Shop-v0",
    "miniwob:click-button",
)


class ByteReward(Wrapper):
    """Adds a reward for the bytes of an action: the tiny model solves none of these tasks."""

    def on_step(self, action: str) -> Any:
        observation, reward, *rest = yield self.env.step(action)
        return observation, reward + sum(action.encode()) % 7, *rest


@pytest.fixture
def byte_reward() -> Any:
    """Register the wrapper for one test."""
    register_wrapper("byte_reward", ByteReward)
    yield
    wrappers.remove("byte_reward")


@pytest.mark.usefixtures("byte_reward")
@pytest.mark.parametrize(
    "id", [QUICK, *[pytest.param(id, marks=pytest.mark.long) for id in FAMILIES]]
)
def test_family_trains_two_updates(
    id: str, make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    record = tmp_path / "episodes.jsonl"
    config = GemConfig(
        id,
        seeds=4,
        horizon=2,
        max_turn_tokens=8,
        wrappers=["byte_reward"],
        record=str(record),
    )
    trainer = make_trainer(config, max_steps=2)
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    trainer.train()
    episodes = list(read_episodes(record))
    assert len(episodes) == 8 and not any(episode.failed for episode in episodes)
    assert {episode.env_id for episode in episodes} == {id}
    norms = [log["grad_norm"] for log in trainer.state.log_history if "grad_norm" in log]
    assert len(norms) == 2 and all(math.isfinite(norm) and norm > 0 for norm in norms)
    after = trainer.model.parameters()
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))
