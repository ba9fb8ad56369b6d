"""Compute the same bits in every run on the same GPU and software, if the program does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["deterministic"]


@contextmanager
def deterministic() -> Iterator[None]:
    """Choose deterministic kernels. Enter before the first matrix product on the GPU."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it once
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
