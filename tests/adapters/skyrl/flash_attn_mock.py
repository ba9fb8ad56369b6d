"""Mock of flash-attn, which SkyRL always imports.

SkyRL calls it with `trainer.remove_microbatch_padding=true` only.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import transformers.modeling_utils  # noqa: F401 - it looks for flash-attn, so it comes first

__all__: list[str] = []


def absent(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("removing the padding needs the real flash-attn; this is a mock")


padding: Any = ModuleType("flash_attn.bert_padding")
padding.pad_input = padding.unpad_input = absent
sys.modules |= {"flash_attn": ModuleType("flash_attn"), padding.__name__: padding}
