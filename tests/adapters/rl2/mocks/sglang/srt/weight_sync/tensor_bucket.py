"""How the main branch's weights travel: many tensors in one."""

from __future__ import annotations

from typing import Any

import torch


class FlattenedTensorBucket:
    """Tensors laid behind one another, with what is needed to take them apart."""

    def __init__(self, named_tensors: list[tuple[str, Any]]) -> None:
        self.named = named_tensors

    def get_flattened_tensor(self) -> Any:
        return torch.cat([tensor.flatten() for _, tensor in self.named])

    def get_metadata(self) -> list[tuple[str, tuple[int, ...]]]:
        return [(name, tuple(tensor.shape)) for name, tensor in self.named]
