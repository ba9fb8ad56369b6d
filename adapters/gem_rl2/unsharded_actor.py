"""Plain: RL2's actor on a plain torch model, in float32: its own update, loss and optimizer step, without FSDP and its kernels.

RL2's FSDP wants CUDA and its attention flash-attn. The conformance kit wants neither, but the same code around them: this class
leaves out the wrapping and keeps everything else. Rows are packed as RL2 packs them; transformers tells them apart by their
positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh

from gem_rl2.interface import which_rl2

if which_rl2() == "main":
    from RL2.workers.fsdp.actor import FSDPActor as Actor
else:
    from RL2.workers.actor import Actor

__all__ = ["PlainActor", "without_cuda"]

_PARALLEL = "cp" if which_rl2() == "main" else "sp"


class PlainActor(Actor):  # type: ignore[misc]
    """RL2's actor with nothing sharded."""

    def __init__(self, config: Any, train: bool) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.config, self.train = config.copy(), train
        self.config.offload_model = self.config.offload_optimizer = False  # which moves FSDP's shards
        self.tokenizer = AutoTokenizer.from_pretrained(config.model_name)
        world = torch.distributed.get_world_size()
        kind = "cuda" if torch.cuda.is_available() else "cpu"
        self.device_mesh = init_device_mesh(kind, (world, 1, 1), mesh_dim_names=("dp", _PARALLEL, "tp"))
        self.dp_size = world
        model = AutoModelForCausalLM.from_pretrained(config.model_name, dtype=torch.float32, attn_implementation="sdpa")
        self.model = model.to(torch.cuda.current_device())
        object.__setattr__(self.model, "module", self.model)  # what FSDP calls the model inside it
        given = dict(config.optimizer) if "optimizer" in config else {"lr": config.lr, "weight_decay": config.weight_decay}
        self.optimizer = torch.optim.AdamW(model.parameters(), **given)
        self.scheduler = torch.optim.lr_scheduler.ConstantLR(self.optimizer, factor=1.0)


@contextmanager
def without_cuda() -> Iterator[None]:
    """Where there is no CUDA, RL2's `current_device()` is the CPU; with CUDA nothing is changed."""
    if torch.cuda.is_available():
        yield
        return
    before = torch.cuda.current_device
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    try:
        yield
    finally:
        torch.cuda.current_device = before
