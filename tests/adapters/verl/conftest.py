"""What the verl tests share: verl on a CPU, and environments that any model earns something in."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import verl_on_cpu

os.environ.update(verl_on_cpu.environment())
os.environ.update({"TQ_LOGGING_LEVEL": "ERROR", "TRANSFORMERS_VERBOSITY": "error"})

from gem_core import Env, register
from gem_core.env.registry import environments

ECHO = "test:Echo-v0"


def pytest_configure(config: pytest.Config) -> None:
    """verl, Ray and what they import warn about themselves; gem's own warnings are errors here as everywhere."""
    for line in ("ignore::Warning", "error:::gem_core", "error:::gem_verl"):
        config.addinivalue_line("filterwarnings", line)


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


class Unmakable(Echo):
    """Cannot be made here."""

    def __init__(self) -> None:
        raise RuntimeError("the disk is full")


@pytest.fixture(scope="session", autouse=True)
def environments_for_tests() -> Iterator[None]:
    """Registered for this session only."""
    import torch

    torch.set_num_threads(1)
    made = {ECHO: Echo, "test:Moody-v0": Moody, "test:Unmakable-v0": Unmakable}
    for id, kind in made.items():
        register(id, kind)
    yield
    for id in made:
        environments.remove(id)


@pytest.fixture(scope="session", autouse=True)
def cluster() -> Iterator[None]:
    """The Ray cluster that a test may start is ended with the session."""
    yield
    import ray

    ray.shutdown()
