"""Fixtures of the SkyRL tests: SkyRL on a CPU, the test environments, and a Ray cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import skyrl_on_cpu
from loguru import logger
from worlds import registered

logger.disable("skyrl")  # it writes to a stream that pytest has closed


def pytest_configure(config: pytest.Config) -> None:
    """Ignore warnings of SkyRL, Ray and their dependencies; gem's own warnings stay errors."""
    for line in ("ignore::Warning", "error:::gem_core", "error:::gem_skyrl"):
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
    """Start a Ray cluster for real runs."""
    import ray

    skyrl_on_cpu.start_mock_gpus()
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Save the tiny model without tied weights, which SkyRL would separate."""
    from gem_core.policies.models import save_untied

    return save_untied("tiny", str(tmp_path_factory.mktemp("model")))
