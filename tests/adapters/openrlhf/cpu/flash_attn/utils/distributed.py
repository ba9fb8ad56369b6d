"""Mock of `flash_attn.utils.distributed`, which OpenRLHF calls for ring attention only."""

from __future__ import annotations

from typing import Any

__all__ = ["all_gather"]


def all_gather(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("ring attention needs the real flash-attn; this is a mock")
