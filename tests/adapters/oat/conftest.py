"""What the oat tests share: the real oat on the CPU, an actor and a learner in this process, and environments to play.

launchpad and vllm cannot be installed everywhere; `stand_ins` takes their place. Everything of oat itself is real.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gem_core import Env, register
from gem_core.env.registry import environments

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "disabled"

STAND_INS = Path(__file__).parent / "stand_ins"
sys.path.insert(0, str(STAND_INS))

with warnings.catch_warnings():  # of pyarrow, DeepSpeed and others, on being imported in the versions oat pins
    warnings.simplefilter("ignore")
    import torch
    from tiny_oat import oat_args

    import gem_oat.conformance
    from gem_oat import GemActor, GemSpec

ECHO, MOODY = "test:Echo-v0", "test:Moody-v0"


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


@pytest.fixture(scope="session", autouse=True)
def environments_for_tests() -> Iterator[None]:
    """Registered for this session only."""
    torch.set_num_threads(1)
    register(ECHO, Echo)
    register(MOODY, Moody)
    yield
    environments.remove(ECHO)
    environments.remove(MOODY)


@pytest.fixture
def make_actor(tmp_path: Path) -> Callable[..., GemActor]:
    """An actor as oat makes it, with the stand-in for vLLM: `make_actor(spec, **PPOArgs fields)`."""

    def make(spec: GemSpec, **changes: Any) -> GemActor:
        args = oat_args(spec, **changes)
        args.gem = spec
        actor = GemActor(None, {"model": args.pretrain, "dtype": "float32"}, args)
        actor.init(0, str(tmp_path))
        return actor

    return make


@pytest.fixture(scope="session")
def make_learner() -> Callable[..., Any]:
    """A learner without actors, kept for the session where settings are the same: `make_learner(spec)`."""
    kept: dict[bool, Any] = {}

    def make(spec: GemSpec) -> Any:
        if spec.with_critic not in kept:
            with warnings.catch_warnings():  # DeepSpeed's, on being started
                warnings.simplefilter("ignore")
                kept[spec.with_critic] = gem_oat.conformance.make_learner(spec)
        learner = kept[spec.with_critic]
        learner.pi_buffer.clear()
        learner.args.gem, learner.args.gamma, learner.args.lam = spec, spec.gamma, spec.lam
        learner.actor_info = {}
        return learner

    return make
