"""Mock of flash-attn, which SkyRL always imports: its varlen attention over that of torch.

SkyRL calls it with `trainer.flash_attn=true`. transformers finds the limits of packed sequences in
their position ids, and passes them to `flash_attn_varlen_func`.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch
from transformers import modeling_flash_attention_utils as of_transformers
from transformers import modeling_utils  # it looks for flash-attn, so it comes first

__all__ = ["flash_attn_varlen_func"]


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None = None,
    causal: bool = False,
) -> torch.Tensor:
    """Return the attention within each sequence of a row of tokens, by (token, head, dimension)."""
    outputs = []
    for start, end in pairwise(cu_seqlens_q.tolist()):
        own = [states[start:end].transpose(0, 1) for states in (q, k, v)]
        outputs.append(
            torch.nn.functional.scaled_dot_product_attention(
                *own, is_causal=causal, scale=softmax_scale, enable_gqa=True
            ).transpose(0, 1)
        )
    return torch.cat(outputs)


def absent(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("only packed sequences have a mock of flash-attn")


package: Any = ModuleType("flash_attn")
package.flash_attn_varlen_func = flash_attn_varlen_func
package.flash_attn_func = package.flash_attn_with_kvcache = absent
padding: Any = ModuleType("flash_attn.bert_padding")
padding.pad_input, padding.unpad_input = of_transformers._pad_input, of_transformers._unpad_input
sys.modules |= {package.__name__: package, padding.__name__: padding}
of_transformers.is_flash_attn_2_available = lambda: True
modeling_utils.PreTrainedModel._flash_attn_can_dispatch = lambda *args, **kwargs: True
