"""Weight transfer of RL2's main branch: many tensors in one."""

from __future__ import annotations

from typing import Any

import torch


class FlattenedTensorBucket:
    """Tensors concatenated into one, with the names and shapes to split it again."""

    def __init__(self, named_tensors: list[tuple[str, Any]]) -> None:
        self.named = named_tensors

    def get_flattened_tensor(self) -> Any:
        return torch.cat([tensor.flatten() for _, tensor in self.named])

    def get_metadata(self) -> list[tuple[str, tuple[int, ...]]]:
        return [(name, tuple(tensor.shape)) for name, tensor in self.named]
