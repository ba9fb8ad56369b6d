"""Fixtures of the oat tests: the real oat on the CPU, with an actor and a learner in this process.

launchpad and vllm cannot be installed everywhere; `mocks` replaces them. oat itself is real.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from worlds import registered

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "disabled"

sys.path.insert(0, str(Path(__file__).parent / "mocks"))

# pyarrow, DeepSpeed and others warn during their import, in the versions that oat pins
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    from tiny_oat import oat_args

    import gem_oat.conformance
    from gem_oat import GemActor, GemConfig


@pytest.fixture(scope="session", autouse=True)
def environments_for_tests() -> Iterator[None]:
    """Register the test environments for this session only."""
    torch.set_num_threads(1)
    with registered():
        yield


@pytest.fixture
def make_actor(tmp_path: Path) -> Callable[..., GemActor]:
    """Return `make_actor(config, **PPOArgs fields)`: an actor as oat starts it, on a mock vLLM."""

    def make(config: GemConfig, **changes: Any) -> GemActor:
        args = oat_args(config, **changes)
        args.gem = config
        actor = GemActor(None, {"model": args.pretrain, "dtype": "float32"}, args)
        actor.init(0, str(tmp_path))
        return actor

    return make


@pytest.fixture(scope="session")
def make_learner() -> Callable[..., Any]:
    """Return `make_learner(config)`: a learner without actors, cached for the session."""
    learners: dict[tuple[bool, float], Any] = {}

    def make(config: GemConfig, learning_rate: float = 0.0) -> Any:
        key = config.needs_values, learning_rate
        if key not in learners:
            with warnings.catch_warnings():  # DeepSpeed warns when it starts
                warnings.simplefilter("ignore")
                learners[key] = gem_oat.conformance.make_learner(
                    config, learning_rate=learning_rate
                )
        learner = learners[key]
        learner.pi_buffer.clear()
        learner.args.gem, learner.args.gamma, learner.args.lam = config, config.gamma, config.lam
        learner.actor_info, learner.steps = {}, 1
        return learner

    return make
