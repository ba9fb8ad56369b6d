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
    from gem_core.adapter_kit.update_log import UpdateLog
    from gem_oat import GemActor, GemConfig


@pytest.fixture(scope="session", autouse=True)
def environments_for_tests() -> Iterator[None]:
    """Register the test environments for this session only."""
    torch.set_num_threads(1)
    with registered():
        yield


@pytest.fixture
def make_actor(tmp_path: Path) -> Iterator[Callable[..., GemActor]]:
    """Return `make_actor(config, **PPOArgs fields)`: an actor as oat starts it, on a mock vLLM."""
    actors: list[GemActor] = []

    def make(config: GemConfig, **changes: Any) -> GemActor:
        args = oat_args(config, **changes)
        args.gem = config
        actor = GemActor(None, {"model": args.pretrain, "dtype": "float32"}, args)
        actor.init(0, str(tmp_path))
        actors.append(actor)
        return actor

    yield make
    for actor in actors:
        actor.finish()


@pytest.fixture(scope="session")
def make_learner() -> Callable[..., Any]:
    """Return `make_learner(config, **PPOArgs fields)`: a learner without actors.

    It is cached for the session.
    """
    learners: dict[tuple[Any, ...], Any] = {}

    def make(config: GemConfig, **settings: Any) -> Any:
        key = (config.needs_values, *sorted(settings.items()))
        if key not in learners:
            with warnings.catch_warnings():  # DeepSpeed warns when it starts
                warnings.simplefilter("ignore")
                learners[key] = gem_oat.conformance.make_learner(config, **settings)
        learner = learners[key]
        learner.pi_buffer.clear()
        learner.args.gem, learner.args.gamma, learner.args.lam = config, config.gamma, config.lam
        learner.actor_info, learner.steps = {}, 1
        learner.gem_log, learner._logged = UpdateLog.of(config), 0
        return learner

    return make
