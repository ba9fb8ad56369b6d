"""Unsharded actor: RL2's models in plain float32, for conformance and machines without a GPU.

RL2's FSDP needs CUDA, and its attention needs flash-attn. `UnshardedActor` and `UnshardedCritic`
replace both and keep RL2's update, loss and optimizer step. Sequences stay packed as in RL2;
transformers separates them by their position ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from omegaconf import open_dict
from RL2.workers.actor import Actor
from RL2.workers.base import Worker
from RL2.workers.critic import Critic
from torch.distributed.device_mesh import init_device_mesh

from gem_core.adapter_kit.patching import patched

__all__ = ["UnshardedActor", "UnshardedCritic", "without_cuda"]


class _Unsharded(Worker):
    """A worker of RL2 with the whole model on each rank; ranks add up their gradients."""

    def _load(self, config: Any, train: bool, model_class: Any, **arguments: Any) -> None:
        from transformers import AutoTokenizer

        self.config, self.train = config.copy(), train
        with open_dict(self.config):  # a reference model has no setting for the optimizer
            # offloading moves FSDP's shards
            self.config.offload_model = self.config.offload_optimizer = False
        self.tokenizer = AutoTokenizer.from_pretrained(config.model_name)
        self.dp_size = dist.get_world_size()
        device = torch.device(torch.cuda.current_device())
        self.device_mesh = init_device_mesh(
            device.type, (self.dp_size, 1, 1), mesh_dim_names=("dp", "sp", "tp")
        )
        model = model_class.from_pretrained(
            config.model_name, dtype=torch.float32, attn_implementation="sdpa", **arguments
        )
        self.model = model.to(device)
        object.__setattr__(self.model, "module", self.model)  # FSDP's name for the model it wraps
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=config.lr, weight_decay=config.weight_decay
        )
        self.scheduler = torch.optim.lr_scheduler.ConstantLR(self.optimizer, factor=1.0)

    def optimizer_step(self) -> float:
        """Average the gradients of all ranks, as FSDP does, then make RL2's optimizer step."""
        for parameter in self.model.parameters() if self.dp_size > 1 else ():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= self.dp_size
        return float(super().optimizer_step())


class UnshardedActor(_Unsharded, Actor):
    """RL2's actor with the whole model on each rank."""

    def __init__(self, config: Any, train: bool) -> None:
        if config.use_liger_kernel:
            from liger_kernel.transformers import AutoLigerKernelForCausalLM

            self._load(config, train, AutoLigerKernelForCausalLM)
        else:
            from transformers import AutoModelForCausalLM

            self._load(config, train, AutoModelForCausalLM)


class UnshardedCritic(_Unsharded, Critic):
    """RL2's critic with the whole model on each rank."""

    def __init__(self, config: Any) -> None:
        from transformers import AutoModelForTokenClassification

        self._load(config, True, AutoModelForTokenClassification, num_labels=1)


# RL2 looks for these class names to save and load checkpoints
UnshardedActor.__name__, UnshardedCritic.__name__ = "Actor", "Critic"


@contextmanager
def without_cuda() -> Iterator[None]:
    """Make `torch.cuda.current_device()`, where RL2 puts its tensors, return the CPU."""
    with patched(torch.cuda, "current_device", lambda: torch.device("cpu")):
        yield
