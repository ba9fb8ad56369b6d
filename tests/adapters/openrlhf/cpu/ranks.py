"""Ranks of the conformance harness whose model OpenRLHF itself loads, with further settings.

A module of its own, because Ray's workers import it.
"""

from __future__ import annotations

import inspect
from typing import Any

import openrlhf_on_cpu

openrlhf_on_cpu.install_mocks()

# ruff: noqa: E402 - the mocks are installed before the imports
import flash_attn
from openrlhf.models import Actor
from triton_on_cpu import interpret_kernels

from gem_core.policies.tiny import tiny_model_path
from gem_openrlhf.conformance import RankActor

__all__ = ["LigerRank", "PackedRank"]


class PackedRank(RankActor):
    """Rank with `--ds.packing_samples`, which counts the sequences in each call of flash-attn."""

    def load_actor(self) -> Any:
        self.packed: list[int] = []
        attend = flash_attn.flash_attn_varlen_func

        def counted(*args: Any, cu_seqlens_q: Any, **kwargs: Any) -> Any:
            self.packed.append(len(cu_seqlens_q) - 1)
            return attend(*args, cu_seqlens_q=cu_seqlens_q, **kwargs)

        # transformers reads the names of the arguments
        counted.__signature__ = inspect.signature(attend)  # type: ignore[attr-defined]
        flash_attn.flash_attn_varlen_func = counted
        return Actor(
            str(tiny_model_path()), attn_implementation="flash_attention_2", packing_samples=True
        )

    def packed_sequences(self) -> list[int]:
        """Return the number of sequences in each call of flash-attn since the last request."""
        numbers, self.packed = self.packed, []
        return numbers


class LigerRank(RankActor):
    """Rank with `--ds.use_liger_kernel`; Triton interprets Liger's kernels."""

    def load_actor(self) -> Any:
        interpret_kernels()
        actor = Actor(str(tiny_model_path()), attn_implementation="sdpa", use_liger_kernel=True)
        from liger_kernel.transformers import LigerRMSNorm

        assert isinstance(actor.model.model.norm, LigerRMSNorm)
        return actor
