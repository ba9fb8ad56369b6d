"""Weights: a mock of verl's transfer of weights to separate servers, through a file.

`checkpoint_engine.custom_backend_module=verl_on_cpu.weights` registers it as the backend `file`.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry


@CheckpointEngineRegistry.register("file")
class FileCheckpointEngine(CheckpointEngine):
    """Engine that saves the trainer's weights to a file, which the servers load."""

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self.is_master = is_master
        self.path = Path()

    def prepare(self) -> dict[str, Any]:
        return {"folder": tempfile.mkdtemp() if self.is_master else None}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        folder = metadata[0]["folder"]
        return {"folder": [folder] * actor_wg_world_size}, {"folder": [folder] * rollout_world_size}

    def init_process_group(self, folder: str) -> None:
        self.path = Path(folder) / "weights.pt"

    async def send_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None
    ) -> None:
        # every rank must consume the whole iterator
        state = {name: tensor.detach().cpu().clone() for name, tensor in weights}
        if self.is_master:
            torch.save(state, self.path.with_suffix(".part"))
            os.replace(self.path.with_suffix(".part"), self.path)

    async def receive_weights(
        self, global_steps: int | None = None
    ) -> AsyncIterator[tuple[str, torch.Tensor]]:
        while not self.path.exists():  # noqa: ASYNC110 - another process writes the file
            await asyncio.sleep(0.05)
        for item in torch.load(self.path).items():
            yield item

    def finalize(self) -> None:
        if self.is_master:
            self.path.unlink()
            self.path.parent.rmdir()
