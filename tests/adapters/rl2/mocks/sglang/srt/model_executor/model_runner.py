"""Weight transfer of RL2's release: one serialized tensor at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class LocalSerializedTensor:
    """A tensor that each rank of a tensor-parallel group has serialized."""

    values: list[Any]
