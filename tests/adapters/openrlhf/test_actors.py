"""The weight sync of a GPU that training and vLLM share, with CPU tensors."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from openrlhf.trainer.ray import ppo_actor
from peft import LoraConfig, get_peft_model

from gem_core.policies.tiny import load_tiny
from gem_openrlhf import actors
from gem_openrlhf.actors import GemActorTrainer, GemRolloutActor, buckets, class_of


class Engine:
    """A vLLM engine that rebuilds the weights as OpenRLHF's worker does, and keeps copies."""

    def __init__(self) -> None:
        self.calls: list[dict[str, torch.Tensor]] = []
        self.resets = 0
        self.update_weights_cuda_ipc = SimpleNamespace(remote=self.update)
        self.reset_prefix_cache = SimpleNamespace(remote=self.reset)

    def update(self, weights: Any) -> None:
        self.calls.append({})
        for name, dtype, shape, handles in weights:
            rebuild, arguments = handles["gpu"]
            tensor = rebuild(*arguments)
            assert (tensor.dtype, tensor.shape) == (dtype, shape)
            self.calls[-1][name] = tensor.clone()

    def reset(self) -> None:
        self.resets += 1


@pytest.fixture
def one_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    monkeypatch.setattr(ppo_actor, "get_physical_gpu_id", lambda: "gpu")
    monkeypatch.setattr(ppo_actor, "torch_dist_barrier_and_cuda_sync", lambda: None)
    monkeypatch.setattr(actors.ray, "get", lambda results: results)
    yield
    torch.distributed.destroy_process_group()


def trainer(model: torch.nn.Module, engines: list[Engine], zero_stage: int = 2) -> Any:
    trainer = GemActorTrainer.__new__(GemActorTrainer)
    ds = SimpleNamespace(zero_stage=zero_stage, tensor_parallel_size=1)
    args = SimpleNamespace(ds=ds, vllm=SimpleNamespace(enable_prefix_caching=True))
    trainer.strategy = SimpleNamespace(args=args)
    trainer.use_cuda_ipc, trainer.vllm_engines = True, engines
    trainer.actor = SimpleNamespace(model=SimpleNamespace(module=model))
    return trainer


def test_all_weights_reach_every_engine_in_one_call(one_rank: None) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    engines = [Engine(), Engine()]
    trainer(model, engines).broadcast_to_vllm()
    for engine in engines:
        (received,) = engine.calls
        assert engine.resets == 1
        torch.testing.assert_close(received, dict(model.named_parameters()))


@pytest.mark.parametrize("ipc", [True, False], ids=["shared GPUs", "own GPUs"])
def test_vllm_gets_the_base_models_names_with_the_adapter_added(
    one_rank: None, ipc: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM does not know PEFT's names, under which OpenRLHF sends the weights."""
    base, _ = load_tiny()
    names, before = dict(base.named_parameters()), deepcopy(base.state_dict())
    model = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear"))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # 0 at the start, so the adapter would change nothing
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    expected = deepcopy(model).merge_and_unload().state_dict()
    engine, sent = Engine(), {}

    def send(self: Any) -> None:
        sent.update(self.actor.model.module.named_parameters())

    monkeypatch.setattr(ppo_actor.ActorPPOTrainer, "broadcast_to_vllm", send)
    lora_trainer = trainer(model, [engine])
    actor, lora_trainer.use_cuda_ipc = lora_trainer.actor, ipc
    lora_trainer.broadcast_to_vllm()
    received = engine.calls[0] if ipc else sent
    assert received.keys() == names.keys() and lora_trainer.actor is actor
    torch.testing.assert_close(received, {name: expected[name] for name in names})
    changed = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(received[changed], before[changed])
    for name, weight in deepcopy(model).unload().state_dict().items():
        assert torch.equal(weight, before[name]), "the base model stays as it is"


def test_sharded_weights_are_sent_by_openrlhf(
    one_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ZeRO-3, OpenRLHF gathers one parameter at a time."""
    sent = []
    monkeypatch.setattr(ppo_actor.ActorPPOTrainer, "broadcast_to_vllm", lambda self: sent.append(1))
    engine = Engine()
    trainer(torch.nn.Linear(2, 2), [engine], zero_stage=3).broadcast_to_vllm()
    assert sent and not engine.calls


def test_engine_loads_each_weight_with_openrlhfs_method() -> None:
    import asyncio

    loaded = []
    cls = class_of(GemRolloutActor)
    engine = cls.__new__(cls)

    async def load(*weight: Any) -> None:
        loaded.append(weight)

    engine.update_weight_cuda_ipc = load
    asyncio.run(engine.update_weights_cuda_ipc([("a", 1), ("b", 2)]))
    assert loaded == [("a", 1), ("b", 2)]


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([], []),
        ([3], [[3]]),
        ([9], [[9]]),
        ([2, 2, 2], [[2, 2], [2]]),
        ([1, 9, 1], [[1], [9], [1]]),
    ],
)
def test_bucket_is_limited_or_has_one_item(sizes: list[int], groups: list[list[int]]) -> None:
    assert list(buckets(sizes, lambda size: size, limit=4)) == groups
