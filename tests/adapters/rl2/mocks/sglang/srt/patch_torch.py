"""The module path of SGLang 0.5.2."""

from __future__ import annotations

from sglang.srt.utils.patch_torch import monkey_patch_torch_reductions

__all__ = ["monkey_patch_torch_reductions"]
