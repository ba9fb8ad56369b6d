"""Fixtures of the verl tests: verl on a CPU, the test environments, and a Ray cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import verl_on_cpu

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
    """Start a small Ray cluster; on a busy machine Ray may need more than one attempt."""
    import ray

    for attempt in range(3):
        if ray.is_initialized():
            break
        try:
            ray.init(
                address="local",
                num_cpus=4,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
            )
        except Exception:
            ray.shutdown()
            if attempt == 2:
                raise
    yield
    ray.shutdown()
