"""What `gem-rl adapters` says where RL2 is really installed, and whether the ways in it names are still there."""

from __future__ import annotations

import inspect

import pytest
import RL2.trainer.ppo as rl2_ppo
import RL2.workers.actor as rl2_actor
import RL2.workers.rollout as rl2_rollout

from gem_core.adapter_kit.declaration import probe
from gem_core.errors import ConfigError
from gem_rl2 import ADAPTER, which_rl2
from gem_rl2.interface import replaced


def test_the_installed_rl2_is_one_the_adapter_fits() -> None:
    status = probe(ADAPTER)
    assert status.installed == "0.0.2"
    assert status.supported
    assert all("machine" in missing for missing in status.missing), "only the machine may be another than RL2's"


def test_what_is_overridden_and_replaced_is_there() -> None:
    assert list(inspect.signature(rl2_rollout.Rollout.rollout).parameters) == ["self", "data", "train"]
    assert list(inspect.signature(rl2_rollout.Rollout.__call__).parameters) == ["self", "data_list", "train", "step"]
    assert list(inspect.signature(rl2_rollout.async_generate).parameters) == ["url", "states", "sampling_params"]
    takes = list(inspect.signature(rl2_ppo.compute_advantages).parameters)
    assert takes == ["config", "raw_tensor_dict", "cu_seqs", "step"]
    assert list(inspect.signature(rl2_actor.count_total).parameters) == ["minibatches", "key", "device_mesh"]
    assert {"Rollout", "PPOTrainer", "main"} <= set(vars(rl2_ppo))


def test_a_changed_rl2_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"has no RL2.trainer.ppo.compute_credit"), replaced(rl2_ppo, "compute_credit", None):
        pass
    with (
        pytest.raises(ConfigError, match=r"compute_advantages takes \(config raw_tensor_dict cu_seqs step\)"),
        replaced(rl2_ppo, "compute_advantages", None, "config batch"),
    ):
        pass


def test_which_rl2_it_is_is_told_by_its_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    assert which_rl2() == "release"
    real = importlib.util.find_spec

    def only(*there: str) -> None:
        def find(name: str, package: str | None = None) -> object:
            hidden = name in ("RL2.utils.sglang", "RL2.utils.communication") and name not in there
            return None if hidden else real("RL2.utils" if name in there else name, package)

        monkeypatch.setattr(importlib.util, "find_spec", find)

    only("RL2.utils.communication")
    assert which_rl2() == "main"
    only()
    with pytest.raises(ConfigError, match=r"fits rl-square 0.0.2, which has RL2.utils.sglang, and RL2's main branch"):
        which_rl2()


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gem_core.adapter_kit.declaration._installed", lambda *names: "0.0.1.post1")
    with pytest.raises(ConfigError, match=r"fits rl-square ==0.0.2; installed is 0.0.1.post1"):
        which_rl2()
