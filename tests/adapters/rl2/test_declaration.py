"""What `gem-rl adapters` shows where RL2 is really installed, and whether what the adapter replaces still exists."""

from __future__ import annotations

import inspect

import RL2.trainer.ppo as rl2_ppo
import RL2.utils.sglang as rl2_sglang
import RL2.workers.actor as rl2_actor
import RL2.workers.rollout as rl2_rollout

from gem_core.adapter_kit.declaration import probe
from gem_rl2 import ADAPTER


def test_the_installed_rl2_is_one_the_adapter_supports() -> None:
    status = probe(ADAPTER)
    assert status.installed == "0.0.2"
    assert status.supported
    assert all("machine" in missing for missing in status.missing), (
        "only the machine may be another than RL2's"
    )


def test_what_is_overridden_and_replaced_exists() -> None:
    assert list(inspect.signature(rl2_rollout.Rollout.rollout).parameters) == [
        "self",
        "data",
        "train",
    ]
    assert list(inspect.signature(rl2_rollout.Rollout.__call__).parameters) == [
        "self",
        "data_list",
        "train",
        "step",
    ]
    assert list(inspect.signature(rl2_rollout.async_generate).parameters) == [
        "url",
        "states",
        "sampling_params",
    ]
    advantage_parameters = list(inspect.signature(rl2_ppo.compute_advantages).parameters)
    assert advantage_parameters == ["config", "raw_tensor_dict", "cu_seqs", "step"]
    assert list(inspect.signature(rl2_actor.count_total).parameters) == [
        "minibatches",
        "key",
        "device_mesh",
    ]
    assert list(inspect.signature(rl2_actor.rank0_log).parameters) == ["metrics", "step"]
    assert "prometheus_port" in inspect.signature(rl2_sglang.RouterArgs).parameters
    assert {"Rollout", "PPOTrainer", "main"} <= set(vars(rl2_ppo))
