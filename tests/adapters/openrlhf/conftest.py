"""Fixtures of the OpenRLHF tests: OpenRLHF on a CPU (see cpu/), Ray, and a mock vLLM engine."""

from __future__ import annotations

import asyncio
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_start import start_ray
from worlds import registered

CPU = Path(__file__).parent / "cpu"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
# otherwise Ray warns at every start that 0 will become its default
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
sys.path.insert(0, str(CPU))
# for Ray's workers and for programs that the tests start
os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)

# DeepSpeed, vLLM and torch warn about each other during their import
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import openrlhf_on_cpu

    openrlhf_on_cpu.install_mocks()
    import gem_openrlhf.conformance  # noqa: F401

from vllm_mock import Engine  # noqa: E402 - the path is set above


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore the warnings of Ray's processes, which Python raises in an arbitrary test."""
    for item in items:
        if CPU.parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(
                pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
            )


@pytest.fixture(scope="session", autouse=True)
def environments_for_tests() -> Iterator[None]:
    """Register the test environments for this session only."""
    import torch

    torch.set_num_threads(1)
    with registered():
        yield


@pytest.fixture(scope="session")
def ray_here() -> Iterator[None]:
    """Start a Ray instance for this session."""
    import ray

    start_ray(num_cpus=4, num_gpus=0)
    yield
    ray.shutdown()


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def play(engine: Engine) -> Callable[..., list[dict[str, Any]]]:
    """Return `play(config, seeds, samples)`, which calls an executor as OpenRLHF's actor does."""
    from vllm import SamplingParams

    from gem_openrlhf import GemAgentExecutor

    executor = GemAgentExecutor()

    def run(
        config: Any, seeds: list[int], samples: int = 1, max_length: int = 512, params: Any = None
    ) -> list[dict[str, Any]]:
        shared = params or SamplingParams(max_tokens=None, min_tokens=1, logprobs=1)

        async def all_episodes() -> list[dict[str, Any]]:
            calls = [
                executor.execute(
                    prompt=f"seed {seed}",
                    label=label,
                    sampling_params=shared,
                    max_length=max_length,
                    hf_tokenizer=engine.tokenizer,
                    llm_engine=engine,
                    images=None,
                )
                for seed, label in zip(seeds, config.labels(seeds))
                for _ in range(samples)
            ]
            return await asyncio.gather(*calls)

        return asyncio.run(all_episodes())

    return run
