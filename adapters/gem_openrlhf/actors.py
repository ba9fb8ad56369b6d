"""Actors: OpenRLHF's Ray actors around the models and engines, with what gem adds to them.

`trainer.py` lists the names that they replace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import ray
import torch
from openrlhf.trainer.ray import ppo_actor, ppo_critic, vllm_engine
from openrlhf.utils.loss_utils import get_loss_batch_info

from gem_core.adapter_kit.patching import patched
from gem_openrlhf.lora import has_lora, merged_actor

__all__ = [
    "GemActorTrainer",
    "GemCriticActor",
    "GemCriticTrainer",
    "GemPolicyActor",
    "GemRolloutActor",
    "class_of",
]


def class_of(actor: Any) -> Any:
    """Return the class under `@ray.remote`. Ray's own subclass copies every inherited method."""
    return actor.__ray_metadata__.modified_class.__ray_actor_class__


@ray.remote
class GemRolloutActor(class_of(vllm_engine.RolloutRayActor)):  # type: ignore[misc]
    """A vLLM engine that knows the update its weights come from."""

    gem_step = 0

    async def set_gem_step(self, step: int) -> None:
        """Store the number of finished updates. The agent executor reads it."""
        self.gem_step = step

    async def update_weights_cuda_ipc(self, weights: Sequence[tuple[Any, ...]]) -> None:
        """Load several weights, each given as the arguments of `update_weight_cuda_ipc`."""
        await asyncio.gather(*(self.update_weight_cuda_ipc(*weight) for weight in weights))


class GemActorTrainer(ppo_actor.ActorPPOTrainer):
    """OpenRLHF's policy optimisation, also for micro-batches without trained tokens."""

    def broadcast_to_vllm(self) -> None:
        """Send the weights to vLLM, those of a LoRA added to the base model's."""
        actor = self.actor
        if has_lora(actor.model.module):
            self.actor = merged_actor(actor.model.module)
        try:
            self._send_weights()
        finally:
            self.actor = actor

    def _send_weights(self) -> None:
        """Send all weights of `self.actor`.

        If training and vLLM share GPUs, OpenRLHF makes one Ray call per parameter and waits for it,
        which takes longer than an update of a small model. Here a call has many parameters.
        """
        args = self.strategy.args
        if not self.use_cuda_ipc or args.ds.zero_stage == 3 or args.ds.tensor_parallel_size > 1:
            super().broadcast_to_vllm()
            return
        first = torch.distributed.get_rank() == 0
        resets = []
        if first and getattr(args.vllm, "enable_prefix_caching", False):
            resets = [engine.reset_prefix_cache.remote() for engine in self.vllm_engines]
        torch.cuda.empty_cache()
        synced = (
            (name, p)
            for name, p in self.actor.model.module.named_parameters()
            if p.requires_grad or not getattr(self.actor, "is_vlm", False)
        )
        for bucket in buckets(synced, lambda item: item[1].nbytes):
            # the copies live until all engines have read them
            copies = [(name, p.data.clone()) for name, p in bucket]
            weights = shared_weights(copies, ppo_actor.get_physical_gpu_id())
            if first:
                ray.get([e.update_weights_cuda_ipc.remote(weights) for e in self.vllm_engines])
            ppo_actor.torch_dist_barrier_and_cuda_sync()
        ray.get(resets)
        torch.cuda.empty_cache()
        ppo_actor.torch_dist_barrier_and_cuda_sync()

    def training_step(
        self, experience: Any, kl_ctl: float, step: int, loss_batch_info: Any = None
    ) -> dict[str, Any]:
        """Train one micro-batch. A mini-batch without trained tokens makes no optimizer step."""
        with _mini_batch(self, experience, step, loss_batch_info) as info:
            status: dict[str, Any] = super().training_step(experience, kl_ctl, step, info)
        if not experience.action_mask.any():
            # OpenRLHF weights means over no tokens by their number, and divides by that number
            status["metrics"] = {
                k: v.nan_to_num() if hasattr(v, "nan_to_num") else v
                for k, v in status["metrics"].items()
            }
            status["num_action_tokens"] = 1e-6
        return status


class GemCriticTrainer(ppo_critic.CriticPPOTrainer):
    """OpenRLHF's critic optimisation, also for micro-batches without trained tokens."""

    def training_step(
        self, experience: Any, step: int, loss_batch_info: Any = None
    ) -> dict[str, float]:
        """Train one micro-batch. A mini-batch without targets makes no optimizer step."""
        with _mini_batch(self, experience, step, loss_batch_info) as info:
            status: dict[str, float] = super().training_step(experience, step, info)
        if not experience.action_mask.any():
            status["values"] = 0.0  # instead of NaN, a mean over nothing
        return status


@ray.remote(num_gpus=1)
class GemPolicyActor(class_of(ppo_actor.PolicyModelActor)):  # type: ignore[misc]
    """One rank of the trained policy."""

    def init_model_from_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Load the model and use gem's training step."""
        super().init_model_from_pretrained(*args, **kwargs)
        # OpenRLHF constructs the trainer inside this method, with a process group
        self.trainer.__class__ = GemActorTrainer

    def skip_update(self) -> None:
        """Forget a batch that trains nothing."""
        self.trainer.replay_buffer.clear()


@ray.remote(num_gpus=1)
class GemCriticActor(class_of(ppo_critic.CriticModelActor)):  # type: ignore[misc]
    """One rank of a critic with one value per turn, read and trained where the turn begins."""

    def init_model_from_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Load the model and use gem's training step."""
        super().init_model_from_pretrained(*args, **kwargs)
        self.trainer.__class__ = GemCriticTrainer

    def forward(self, sequences: Any, action_mask: Any, attention_mask: Any) -> Any:
        """Return the values of all positions, also of masked turns: `gae` passes through them."""
        return super().forward(sequences, action_mask.new_ones(action_mask.shape), attention_mask)

    def append(self, experience: Any) -> None:
        """Store a batch whose loss mask has the positions with a target."""
        targets = experience.returns
        mask = experience.action_mask * ~targets.isnan()
        super().append(replace(experience, action_mask=mask, returns=targets.nan_to_num()))

    def skip_update(self) -> None:
        """Forget a batch that trains nothing."""
        self.trainer.replay_buffer.clear()


def buckets(
    items: Iterable[Any], size_of: Callable[[Any], int], limit: int = 2**30
) -> Iterator[list[Any]]:
    """Group items in order. A group is at most `limit` large, or has one item."""
    group: list[Any] = []
    size = 0
    for item in items:
        if group and size + size_of(item) > limit:
            yield group
            group, size = [], 0
        group.append(item)
        size += size_of(item)
    if group:
        yield group


def shared_weights(copies: Sequence[tuple[str, Any]], gpu: Any) -> list[tuple[Any, ...]]:
    """Return (name, dtype, shape, handles by GPU) of each tensor, with the handles of all ranks."""
    from torch.multiprocessing.reductions import reduce_tensor

    own = {name: reduce_tensor(tensor) for name, tensor in copies}
    ranks: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(ranks, (gpu, own))
    return [
        (name, tensor.dtype, tensor.shape, {gpu: handles[name] for gpu, handles in ranks})
        for name, tensor in copies
    ]


class _WithoutSteps:
    """OpenRLHF's strategy without optimizer steps."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)

    def backward(self, *args: Any, **kwargs: Any) -> None:
        """Compute no gradient."""

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Leave the weights as they are."""

    def moving_average(self, *args: Any, **kwargs: Any) -> None:
        """Leave the mean of the weights as it is."""


@contextmanager
def _mini_batch(trainer: Any, experience: Any, step: int, info: Any) -> Iterator[dict[str, Any]]:
    """Yield the divisors of a mini-batch's loss; take no optimizer step if it trains no token.

    Its divisors are then 1 instead of 0. A step would apply momentum and weight decay. All
    micro-batches of a mini-batch, on all ranks, have the same divisors.
    """
    info = info or get_loss_batch_info(
        trainer.strategy,
        experience.action_mask,
        replay_buffer=trainer.replay_buffer,
        step=step,
        dynamic_batch=trainer.args.train.dynamic_batch_enable,
    )
    if info["batch_num_tokens"]:
        yield info
        return
    ones = {name: info[name].new_ones(()) for name in ("batch_num_tokens", "global_batch_size")}
    with torch.no_grad(), patched(trainer, "strategy", _WithoutSteps(trainer.strategy)):
        yield {**info, **ones}
