"""The module path of newer versions of SGLang."""

from __future__ import annotations


def monkey_patch_torch_reductions() -> None:
    """Do nothing. SGLang's own changes how GPU tensors are pickled."""
