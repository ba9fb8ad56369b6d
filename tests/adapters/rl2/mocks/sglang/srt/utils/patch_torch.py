"""As in SGLang's newer versions."""

from __future__ import annotations


def monkey_patch_torch_reductions() -> None:
    """Changes how GPU tensors are pickled; there are none."""
