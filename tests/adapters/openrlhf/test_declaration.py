"""`gem-rl adapters` with OpenRLHF installed, and whether the methods the adapter overrides still exist."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import platform
from pathlib import Path
from typing import Any

import pytest
import ray
from openrlhf.trainer.ppo_trainer import BasePPOTrainer
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer
from openrlhf.utils.agent import AgentExecutorBase

from gem_core.adapter_kit.declaration import probe
from gem_openrlhf import ADAPTER
from gem_openrlhf.rollout import GemAgentExecutor
from gem_openrlhf.trainer import (
    GemActorTrainer,
    GemExperienceMaker,
    GemPolicyActor,
    GemPPOTrainer,
    GemRolloutActor,
    GemTraining,
    GemTrainingActor,
)


def test_the_installed_openrlhf_is_supported_and_missing_packages_are_named() -> None:
    status = probe(ADAPTER)
    assert status.installed == importlib.metadata.version("openrlhf")
    assert status.supported
    named = "; ".join(status.missing)
    assert "flash-attn==2.8.3" in named and "vllm==0.29.0" in named  # mocks replace them here
    assert ("linux-x86_64" in named) == (platform.machine() != "x86_64")


def test_the_overridden_methods_still_exist() -> None:
    def own(ours: Any, base: Any) -> list[str]:
        return [
            n
            for n, f in vars(ours).items()
            if inspect.isfunction(f) and not n.startswith("_") and n in vars(base)
        ]

    assert own(GemExperienceMaker, RemoteExperienceMaker) == [
        "make_experience",
        "compute_advantages_and_returns",
    ]
    overridden = [
        "init_checkpoint_states",
        "train_step",
        "broadcast_to_vllm",
        "save_logs_and_checkpoints",
    ]
    assert own(GemTraining, BasePPOTrainer) == overridden
    assert own(GemActorTrainer, ActorPPOTrainer) == ["training_step"]
    for name in overridden:
        theirs, ours = (
            set(inspect.signature(getattr(c, name)).parameters)
            for c in (BasePPOTrainer, GemTraining)
        )
        assert theirs - {"_ray_trace_ctx"} == ours - {"_ray_trace_ctx"}, (
            name
        )  # Ray adds it to some of them
    expected = inspect.signature(AgentExecutorBase.execute).parameters
    assert list(inspect.signature(GemAgentExecutor.execute).parameters)[: len(expected)] == list(
        expected
    )


@pytest.mark.usefixtures("ray_here")
def test_the_actors_can_be_sent_to_another_process() -> None:
    """Ray sends the code of a class, not its name: a method whose `super()` refers to another copy of its class would fail."""

    def strays(actor: Any) -> list[str]:
        made = actor.__ray_metadata__.modified_class
        functions = [
            inspect.unwrap(f)
            for c in made.__mro__
            for f in vars(c).values()
            if inspect.isfunction(f)
        ]
        cells = [(f, dict(zip(f.__code__.co_freevars, f.__closure__ or ()))) for f in functions]
        return [
            f.__qualname__
            for f, own in cells
            if "__class__" in own and own["__class__"].cell_contents not in made.__mro__
        ]

    actors = [GemPPOTrainer, GemTrainingActor, GemRolloutActor, GemPolicyActor]
    worker = ray.remote(num_cpus=1)(lambda: [strays(actor) for actor in actors])
    assert ray.get(worker.remote()) == [[]] * len(actors)


def test_the_tests_package_in_openrlhf_wheel_shadows_nothing() -> None:
    """OpenRLHF installs a package `tests` into site-packages: `import tests` would import OpenRLHF's."""
    for path in Path(__file__).parents[2].rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += (
                [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            )
            assert not [n for n in names if n.split(".")[0] == "tests"], path
