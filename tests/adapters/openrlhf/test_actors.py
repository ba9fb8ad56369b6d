"""The optimizer steps, and the weight sync of a GPU that training and vLLM share, on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from openrlhf.models import Actor, PolicyLoss, ValueLoss
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ray import ppo_actor
from openrlhf.utils.loss_utils import iter_grad_accum_global_norm
from peft import LoraConfig, get_peft_model

from gem_core.policies.tiny import load_tiny
from gem_openrlhf import actors
from gem_openrlhf.actors import (
    GemActorTrainer,
    GemCriticTrainer,
    GemRolloutActor,
    buckets,
    class_of,
)


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


class Strategy:
    """OpenRLHF's strategy with torch's optimizer, which steps after two micro-batches."""

    ring_attn_group = None

    def __init__(self, model: torch.nn.Module) -> None:
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
        self.backwards = self.steps = self.averages = 0

    def backward(self, loss: Any, model: Any, optimizer: Any) -> None:
        (loss / 2).backward()
        self.backwards += 1

    def optimizer_step(self, *_: Any, **__: Any) -> None:
        if self.backwards % 2 == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.steps += 1

    def moving_average(self, *_: Any) -> None:
        self.averages += 1

    def get_grad_norm(self, model: Any) -> float:
        return 0.0


class Critic(torch.nn.Module):
    """A value for each token, from a table."""

    def __init__(self) -> None:
        super().__init__()
        self.values = torch.nn.Embedding(600, 1)

    def forward(self, sequences: Any, **_: Any) -> Any:
        return self.values(sequences)[:, :-1, 0], None


def micro_batch(trained: bool) -> Any:
    """Return two sequences of four tokens."""
    numbers = torch.ones(2, 3)
    return Experience(
        sequences=torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]),
        attention_mask=torch.ones(2, 4, dtype=torch.long),
        action_mask=torch.full((2, 3), int(trained)),
        action_log_probs=-numbers,
        advantages=numbers,
        values=numbers,
        returns=2 * numbers,
        info={},
    )


@pytest.mark.parametrize("kind", ["policy", "critic"])
def test_mini_batch_without_trained_tokens_makes_no_optimizer_step(kind: str) -> None:
    """Momentum and weight decay would move the weights without a gradient."""
    policy = kind == "policy"
    torch.manual_seed(0)
    if policy:
        model = Actor(load_tiny()[0])
        model.packing_samples = False
    else:
        model = Critic()
    trainer_class = GemActorTrainer if policy else GemCriticTrainer
    own: Any = trainer_class.__new__(trainer_class)  # its constructor needs a process group
    own.strategy = strategy = Strategy(model)
    own.actor = own.critic = own.ema_model = model
    own.actor_optim = own.critic_optim = own.replay_buffer = None
    own.ema_beta, own.aux_loss = 0.9, False
    own.actor_scheduler = own.critic_scheduler = SimpleNamespace(get_last_lr=lambda: [0.0])
    own.actor_loss_fn, own.critic_loss_fn = PolicyLoss(), ValueLoss()
    own.args = SimpleNamespace(
        actor=SimpleNamespace(entropy_coef=None, aux_loss_coef=0.0),
        algo=SimpleNamespace(kl=SimpleNamespace(use_loss=False)),
        train=SimpleNamespace(dynamic_batch_enable=False),
    )

    def train(*parts: bool) -> float:
        """Train one mini-batch of two micro-batches; return the largest change of a weight."""
        before = [parameter.detach().clone() for parameter in model.parameters()]
        batches = iter_grad_accum_global_norm(
            [micro_batch(part) for part in parts], strategy, 2, lambda part: part.action_mask
        )
        for step, (part, info) in enumerate(batches):
            status = own.training_step(part, *([0.0] if policy else []), step, info)
            numbers = status["metrics"] if policy else status
            assert all(torch.as_tensor(number).isfinite().all() for number in numbers.values())
        after = [parameter.detach() for parameter in model.parameters()]
        return max(float((new - old).abs().max()) for new, old in zip(after, before))

    assert train(True, True) > 0 and strategy.steps == 1
    averages = strategy.averages
    assert train(False, False) == 0 and (strategy.steps, strategy.averages) == (1, averages)
    assert own.strategy is strategy
    assert train(False, True) > 0 and strategy.steps == 2
