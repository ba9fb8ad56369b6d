"""How the release's weights are named on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class LocalSerializedTensor:
    """One tensor, serialized by each rank of a tensor-parallel group."""

    values: list[Any]
