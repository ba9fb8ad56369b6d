"""Mock of flash-attn, which needs a GPU to build: attention over packed sequences, by torch.

transformers' flash-attention path and OpenRLHF's packed samples call it; ring attention fails.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
) -> torch.Tensor:
    """Attend within each sequence; `cu_seqlens_q` has the bounds of the sequences in `q`."""
    lengths = (cu_seqlens_q.diff().tolist(), *2 * (cu_seqlens_k.diff().tolist(),))
    sequences = zip(*(tensor.split(sizes) for tensor, sizes in zip((q, k, v), lengths)))
    outputs = [
        scaled_dot_product_attention(
            *(part.transpose(0, 1) for part in sequence),
            dropout_p=dropout_p,
            is_causal=causal,
            scale=softmax_scale,
            enable_gqa=True,
        ).transpose(0, 1)
        for sequence in sequences
    ]
    return torch.cat(outputs)


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
) -> torch.Tensor:
    """Attend within each row of a batch without padding."""
    output = scaled_dot_product_attention(
        *(tensor.transpose(1, 2) for tensor in (q, k, v)),
        dropout_p=dropout_p,
        is_causal=causal,
        scale=softmax_scale,
        enable_gqa=True,
    )
    return output.transpose(1, 2)


def flash_attn_with_kvcache(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("generation needs the real flash-attn; this is a mock")
