"""Check that RL2's gradient with Liger's layers equals a reference gradient.

A program of its own: Liger replaces classes of transformers in the whole process.
"""

from __future__ import annotations

import rl2_on_cpu
from triton_on_cpu import interpret_kernels

if __name__ == "__main__":
    interpret_kernels()
    rl2_on_cpu.prepare()
    from gem_conformance import GRADIENT_CASES
    from gem_conformance.kit import check_gradient
    from liger_kernel.transformers import LigerRMSNorm
    from transformers.models.llama import modeling_llama

    from gem_rl2.conformance import RL2Harness

    check_gradient(RL2Harness(["actor.use_liger_kernel=true"]), GRADIENT_CASES[2])
    assert modeling_llama.LlamaRMSNorm is LigerRMSNorm
