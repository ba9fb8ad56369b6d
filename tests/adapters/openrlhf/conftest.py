"""What the OpenRLHF tests share: OpenRLHF on a CPU (see cpu/), a Ray of their own, and an engine that stands in for vLLM's."""

from __future__ import annotations

import asyncio
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gem_core import Env, register
from gem_core.env.registry import environments
from gem_core.policies.tiny import load_tiny

CPU = Path(__file__).parent / "cpu"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # else Ray warns at every start that this will be its default
# for Ray's workers, which find flash_attn there, and the packages under test where this process does
os.environ["PYTHONPATH"] = os.pathsep.join([str(CPU), *(p for p in sys.path if p)])
sys.path.insert(0, str(CPU))

with warnings.catch_warnings():  # of DeepSpeed, vLLM and torch about each other, when they are imported
    warnings.simplefilter("ignore")
    import openrlhf_on_cpu

    openrlhf_on_cpu.stand_in()
    import gem_openrlhf.conformance  # noqa: F401

ECHO, MOODY = "test:Echo-v0", "test:Moody-v0"


class Echo(Env):
    """Pays by a sum over what was said, for one to three turns, so that any model earns ragged rewards."""

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ray leaves processes to the garbage collector, which complains in whatever test is running."""
    for item in items:
        if CPU.parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(scope="session", autouse=True)
def environments_for_tests() -> Iterator[None]:
    """Registered for this session only."""
    import torch

    torch.set_num_threads(1)
    register(ECHO, Echo)
    register(MOODY, Moody)
    yield
    environments.remove(ECHO)
    environments.remove(MOODY)


@pytest.fixture(scope="session")
def ray_here() -> Iterator[None]:
    """A Ray of this session's own."""
    import ray

    ray.init(address="local", num_cpus=4, num_gpus=0, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


class Engine:
    """What an executor sees of OpenRLHF's vLLM actor, with the tiny model behind it."""

    def __init__(self) -> None:
        from gem_core.policies.transformers_policy import TransformersPolicy

        model, self.tokenizer = load_tiny()
        self.policy = TransformersPolicy(model, self.tokenizer, seed=0, where="inline")
        self.asked: list[tuple[int, Any]] = []
        """(length of the prompt, parameters) of each request."""
        self.gem_step = 0

    async def generate(self, prompt_token_ids: list[int], sampling_params: Any, multi_modal_data: Any = None) -> Any:
        from gem_core import Sampling

        self.asked.append((len(prompt_token_ids), sampling_params))
        found = await self.policy.generate(prompt_token_ids, Sampling(max_tokens=sampling_params.max_tokens))
        logprobs = [{i: SimpleNamespace(logprob=p)} for i, p in zip(found.ids, found.logprobs or ())]
        output = SimpleNamespace(
            token_ids=list(found.ids),
            finish_reason=found.finish.value,
            logprobs=None if sampling_params.logprobs is None else logprobs,
        )
        return SimpleNamespace(outputs=[output])


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def play(engine: Engine) -> Callable[..., list[dict[str, Any]]]:
    """`play(spec, seeds, samples)`: what an executor returns, called as OpenRLHF's actor calls it."""
    from vllm import SamplingParams

    from gem_openrlhf import GemAgentExecutor

    executor = GemAgentExecutor()

    def run(spec: Any, seeds: list[int], samples: int = 1, max_length: int = 512, params: Any = None) -> list[dict[str, Any]]:
        shared = params or SamplingParams(max_tokens=None, min_tokens=1, logprobs=1)

        async def all_of_them() -> list[dict[str, Any]]:
            calls = [
                executor.execute(
                    prompt=f"start {seed}",
                    label=spec.label(seed),
                    sampling_params=shared,
                    max_length=max_length,
                    hf_tokenizer=engine.tokenizer,
                    llm_engine=engine,
                    images=None,
                )
                for seed in seeds
                for _ in range(samples)
            ]
            return await asyncio.gather(*calls)

        return asyncio.run(all_of_them())

    return run
