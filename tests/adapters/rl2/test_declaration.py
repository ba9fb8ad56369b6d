"""The adapter's declaration, and the RL2 functions it overrides and replaces."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import RL2.trainer.ppo as rl2_ppo
import RL2.utils.sglang as rl2_sglang
import RL2.workers.actor as rl2_actor
import RL2.workers.critic as rl2_critic
import RL2.workers.rollout as rl2_rollout

from gem_core.adapter_kit.declaration import probe
from gem_rl2 import ADAPTER


def test_declaration_matches_the_installed_version() -> None:
    status = probe(ADAPTER)
    assert status.installed == "0.0.2"
    assert status.supported
    # the tests may run on a platform that RL2 does not support
    assert len(status.missing) == (not status.platform_fits)


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (rl2_rollout.Rollout.rollout, "self data train"),
        (rl2_rollout.Rollout.__call__, "self data_list train step"),
        (rl2_rollout.async_generate, "url states sampling_params"),
        (rl2_ppo.compute_advantages, "config raw_tensor_dict cu_seqs step"),
        (rl2_actor.count_total, "minibatches key device_mesh"),
        (rl2_actor.rank0_log, "metrics step"),
        (rl2_actor.Actor.optimizer_step, "self"),
        (rl2_critic.Critic.compute_values, "self minibatches step"),
        (rl2_critic.Critic.update, "self batches step"),
        (rl2_ppo.load_ckpt, "trainer workers"),
    ],
    ids=lambda value: getattr(value, "__qualname__", None),
)
def test_overridden_methods_exist_with_the_same_parameters(
    function: Callable[..., Any], parameters: str
) -> None:
    assert list(inspect.signature(function).parameters) == parameters.split()


def test_rl2_has_the_replaced_names() -> None:
    assert "prometheus_port" in inspect.signature(rl2_sglang.RouterArgs).parameters
    assert {"Rollout", "PPOTrainer", "main"} <= set(vars(rl2_ppo))
