"""Flash-attn's kernels, which raise when called."""

from __future__ import annotations

from typing import Any, NoReturn


def _needs_cuda(*args: Any, **kwargs: Any) -> NoReturn:
    raise RuntimeError("flash-attn needs CUDA; the tests' actor uses torch's attention")


_flash_attn_forward = _flash_attn_backward = _flash_attn_varlen_forward = (
    _flash_attn_varlen_backward
) = _needs_cuda
