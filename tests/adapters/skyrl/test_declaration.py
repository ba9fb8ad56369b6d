"""Declaration of the SkyRL adapter: it matches the installed SkyRL and the methods it overrides."""

from __future__ import annotations

import inspect
from importlib.metadata import version

import pytest
from skyrl.backends.skyrl_train.utils import ppo_utils
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.fully_async_trainer import FullyAsyncRayPPOTrainer, GeneratedOutputGroup
from skyrl.train.generators.utils import concatenate_generator_outputs
from skyrl.train.trainer import RayPPOTrainer

from gem_core.adapter_kit.declaration import probe
from gem_core.errors import ConfigError
from gem_skyrl import ADAPTER
from gem_skyrl.config import ESTIMATOR
from gem_skyrl.convert import PLAYED
from gem_skyrl.trainer import GemExp, GemTrainer


def test_declaration_matches_the_installed_version() -> None:
    status = probe(ADAPTER)
    assert status.installed == version("skyrl")
    assert status.supported
    assert status.missing == ("flash-attn>=2.8", "vllm>=0.23"), "the tests mock them"


@pytest.mark.parametrize("trainer", [RayPPOTrainer, FullyAsyncRayPPOTrainer])
def test_trainers_have_the_methods_that_the_adapter_overrides(trainer: type) -> None:
    for name, parameters in (
        ("load_checkpoints", ["self"]),
        ("convert_to_training_input", ["self", "generator_output", "uids"]),
        ("compute_advantages_and_returns", ["self", "data"]),
        ("_execute_training_step", ["self", "model", "data"]),
        ("train_critic_and_policy", ["self", "data"]),
    ):
        assert list(inspect.signature(getattr(trainer, name)).parameters) == parameters
        assert list(inspect.signature(getattr(GemTrainer, name)).parameters) == parameters


def test_async_trainer_passes_on_the_outputs_of_the_generator() -> None:
    """gem's generator returns an error as its output, which gem's trainer raises here."""
    convert = FullyAsyncRayPPOTrainer.convert_generation_group_mini_batch_to_training_input
    groups, dropped = list(inspect.signature(convert).parameters)[1:]
    assert (groups, dropped) == ("cur_generation_group_mini_batch", "dropped_groups")
    assert "generator_output" in inspect.signature(GeneratedOutputGroup).parameters


def test_experiment_has_the_methods_that_the_adapter_overrides() -> None:
    assert {name for name in vars(GemExp) if name.startswith("get_")} <= set(vars(BasePPOExp))


def test_skyrl_passes_on_the_episodes_of_an_output() -> None:
    """The async trainer joins the outputs of several prompts."""
    output = {
        "prompt_token_ids": [[1]],
        "response_ids": [[2, 3]],
        "rewards": [[0.0, 1.0]],
        "loss_masks": [[1, 1]],
        "rollout_logprobs": None,
        PLAYED: ["an episode"],
    }
    joined = concatenate_generator_outputs([output, {**output, PLAYED: ["another"]}])
    assert joined[PLAYED] == ["an episode", "another"]


def test_stock_trainer_with_gems_estimator_names_the_experiment() -> None:
    with pytest.raises(ConfigError, match=r"use gem_skyrl\.GemExp"):
        ppo_utils.AdvantageEstimatorRegistry._functions[ESTIMATOR]()
