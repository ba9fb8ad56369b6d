"""Mock of `flash_attn.bert_padding`: transformers' versions of the same functions."""

from __future__ import annotations

import torch
from einops import rearrange
from transformers.modeling_flash_attention_utils import _pad_input as pad_input
from transformers.modeling_flash_attention_utils import _unpad_input as unpad_input

__all__ = ["index_first_axis", "pad_input", "rearrange", "unpad_input"]


def index_first_axis(tensor: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Return the entries of `tensor` at `indices` of its first axis."""
    return tensor[indices]
