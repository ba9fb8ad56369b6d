"""Fixtures of the verl tests: verl on a CPU, the test environments, and a Ray cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import verl_on_cpu
from ray_cluster import shut_down_ray
from ray_start import start_ray

os.environ.update(verl_on_cpu.environment())
os.environ.update({"TQ_LOGGING_LEVEL": "ERROR", "TRANSFORMERS_VERBOSITY": "error"})
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # Ray's workers import the same gem

from worlds import registered


def pytest_configure(config: pytest.Config) -> None:
    """Ignore warnings of verl, Ray and their dependencies; gem's own warnings stay errors."""
    for line in ("ignore::Warning", "error:::gem_core", "error:::gem_verl"):
        config.addinivalue_line("filterwarnings", line)


@pytest.fixture(scope="session", autouse=True)
def environments_for_tests() -> Iterator[None]:
    """Register the test environments for this session."""
    import torch

    torch.set_num_threads(1)
    with registered():
        yield


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """Start a small Ray cluster for the conformance harness."""
    start_ray(num_cpus=4, logging_level="ERROR")
    yield
    shut_down_ray()


@pytest.fixture(scope="module")
def training_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Start a Ray cluster for real runs; return the folder of verl's logs.

    The harness keeps verl's queue in its own cluster, which a run would share.
    """
    shut_down_ray()
    logs = tmp_path_factory.mktemp("logs")
    folders = {
        name: str(logs) for name in ("VERL_FILE_LOGGER_ROOT", "TENSORBOARD_DIR", "WANDB_DIR")
    }
    os.environ.update(folders, WANDB_MODE="offline")
    yield logs  # each run starts a cluster
    shut_down_ray()
