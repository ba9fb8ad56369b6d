"""Declaration of the OpenRLHF adapter: it matches the installed version and its methods."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import platform
from pathlib import Path
from typing import Any

from openrlhf.trainer.ppo_trainer import BasePPOTrainer
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer
from openrlhf.trainer.ray.ppo_critic import CriticPPOTrainer
from openrlhf.utils.agent import AgentExecutorBase

from gem_core.adapter_kit.declaration import probe
from gem_openrlhf import ADAPTER
from gem_openrlhf.actors import (
    GemActorTrainer,
    GemCriticTrainer,
)
from gem_openrlhf.rollout import GemAgentExecutor
from gem_openrlhf.samples import GemSamplesGenerator
from gem_openrlhf.trainer import (
    GemExperienceMaker,
    GemTraining,
)


def test_declaration_matches_the_installed_version() -> None:
    status = probe(ADAPTER)
    assert status.installed == importlib.metadata.version("openrlhf")
    assert status.supported
    missing = "; ".join(status.missing)
    assert "flash-attn==2.8.3" in missing and "vllm==0.29.0" in missing  # mocks replace them here
    assert ("linux-x86_64" in missing) == (platform.machine() != "x86_64")


def overridden_methods(subclass: Any, base: Any) -> list[str]:
    return [
        name
        for name, member in vars(subclass).items()
        if inspect.isfunction(member) and not name.startswith("_") and name in vars(base)
    ]


def parameters(method: Any) -> list[str]:
    # Ray adds _ray_trace_ctx to some methods
    return [name for name in inspect.signature(method).parameters if name != "_ray_trace_ctx"]


def test_overridden_methods_exist_with_the_same_parameters() -> None:
    for own, original, names in (
        (
            GemExperienceMaker,
            RemoteExperienceMaker,
            [
                "make_experience_batch",
                "split_rollout_samples",
                "make_experience",
                "compute_advantages_and_returns",
            ],
        ),
        (
            GemTraining,
            BasePPOTrainer,
            [
                "init_checkpoint_states",
                "train_step",
                "ppo_train",
                "broadcast_to_vllm",
                "save_logs_and_checkpoints",
            ],
        ),
        (GemActorTrainer, ActorPPOTrainer, ["broadcast_to_vllm", "training_step"]),
        (GemCriticTrainer, CriticPPOTrainer, ["training_step"]),
    ):
        assert overridden_methods(own, original) == names
        for name in names:
            expected = set(parameters(getattr(original, name)))
            assert set(parameters(getattr(own, name))) == expected, name
    for name in ("generate_eval_samples", "_generate_vllm", "_process_response_into_experience"):
        assert name in vars(SamplesGenerator) and name in vars(GemSamplesGenerator)
    executor = parameters(AgentExecutorBase.execute)
    assert parameters(GemAgentExecutor.execute)[: len(executor)] == executor


def test_no_test_imports_the_tests_package_of_openrlhf() -> None:
    """OpenRLHF's wheel installs a package `tests`, which `import tests` would find."""
    for path in Path(__file__).parents[2].rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            assert not [name for name in names if name.split(".")[0] == "tests"], path
