"""What the oat tests share: the real oat on the CPU, and an actor and a learner in this process.

launchpad and vllm cannot be installed everywhere; `mocks` replaces them. Everything of oat itself is real.
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

with (
    warnings.catch_warnings()
):  # pyarrow, DeepSpeed and others warn at import in the versions oat pins
    warnings.simplefilter("ignore")
    import torch
    from tiny_oat import oat_args

    import gem_oat.conformance
    from gem_oat import GemActor, GemConfig


@pytest.fixture(scope="session", autouse=True)
def environments_for_tests() -> Iterator[None]:
    """Registered for this session only."""
    torch.set_num_threads(1)
    with registered():
        yield


@pytest.fixture
def make_actor(tmp_path: Path) -> Callable[..., GemActor]:
    """An actor as oat starts it, on the mock of vLLM: `make_actor(config, **PPOArgs fields)`."""

    def make(config: GemConfig, **changes: Any) -> GemActor:
        args = oat_args(config, **changes)
        args.gem = config
        actor = GemActor(None, {"model": args.pretrain, "dtype": "float32"}, args)
        actor.init(0, str(tmp_path))
        return actor

    return make


@pytest.fixture(scope="session")
def make_learner() -> Callable[..., Any]:
    """A learner without actors, kept for the session where it can be shared: `make_learner(config)`."""
    kept: dict[tuple[bool, float], Any] = {}

    def make(config: GemConfig, learning_rate: float = 0.0) -> Any:
        key = config.needs_values, learning_rate
        if key not in kept:
            with warnings.catch_warnings():  # DeepSpeed warns when it starts
                warnings.simplefilter("ignore")
                kept[key] = gem_oat.conformance.make_learner(config, learning_rate=learning_rate)
        learner = kept[key]
        learner.pi_buffer.clear()
        learner.args.gem, learner.args.gamma, learner.args.lam = config, config.gamma, config.lam
        learner.actor_info, learner.steps = {}, 1
        return learner

    return make
