"""Mock of flash-attn: the functions that RL2 calls, over the attention kernels of torch.

Flash-attn must be compiled for each version of torch. Names that are only imported raise when
called. transformers reads the version in `flash_attn-2.8.3.dist-info`.
"""

from __future__ import annotations

from flash_attn.flash_attn_interface import flash_attn_func, flash_attn_varlen_func

__all__ = ["flash_attn_func", "flash_attn_varlen_func"]
