"""Unsharded actor: RL2's actor on a plain float32 model, for conformance and machines without GPU.

RL2's FSDP needs CUDA, and its attention needs flash-attn. `UnshardedActor` replaces both and keeps
RL2's update, loss and optimizer step. Sequences stay packed as in RL2; transformers separates them
by their position ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from RL2.workers.actor import Actor
from torch.distributed.device_mesh import init_device_mesh

from gem_core.adapter_kit.patching import patched

__all__ = ["UnshardedActor", "without_cuda"]


class UnshardedActor(Actor):
    """RL2's actor with the whole model on each rank."""

    def __init__(self, config: Any, train: bool) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.config, self.train = config.copy(), train
        # offloading moves FSDP's shards
        self.config.offload_model = self.config.offload_optimizer = False
        self.tokenizer = AutoTokenizer.from_pretrained(config.model_name)
        self.dp_size = torch.distributed.get_world_size()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device_mesh = init_device_mesh(
            device, (self.dp_size, 1, 1), mesh_dim_names=("dp", "sp", "tp")
        )
        model = AutoModelForCausalLM.from_pretrained(
            config.model_name, dtype=torch.float32, attn_implementation="sdpa"
        )
        self.model = model.to(torch.cuda.current_device())
        object.__setattr__(self.model, "module", self.model)  # FSDP's name for the model it wraps
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=config.lr, weight_decay=config.weight_decay
        )
        self.scheduler = torch.optim.lr_scheduler.ConstantLR(self.optimizer, factor=1.0)


@contextmanager
def without_cuda() -> Iterator[None]:
    """Make `torch.cuda.current_device()` return the CPU if there is no GPU."""
    if torch.cuda.is_available():
        yield
        return
    with patched(torch.cuda, "current_device", lambda: torch.device("cpu")):
        yield
