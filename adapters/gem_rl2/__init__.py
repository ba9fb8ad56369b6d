"""gem for RL2: plays episodes for PPOTrainer and computes per-turn advantages.

Importing this package does not import RL2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gem_core.adapter_kit.declaration import Adapter, Capabilities
from gem_core.adapter_kit.exports import lazy_exports, registration

if TYPE_CHECKING:
    from gem_rl2.config import GemConfig, compose
    from gem_rl2.trainer import GemPPOTrainer, train

__all__ = ["ADAPTER", "GemConfig", "GemPPOTrainer", "compose", "register_adapters", "train"]

ADAPTER = Adapter(
    name="rl2",
    package="gem_rl2",
    distribution="rl-square",
    import_name="RL2",
    extra="rl2",
    versions="==0.0.2",  # tested: 0.0.2, the newest release
    python=">=3.10,<3.14",  # RL2's own minimum; torch 2.8, which it pins, supports up to 3.13
    platforms=("linux-x86_64",),  # sglang 0.5.2 has GPU kernels for x86_64 only
    # RL2's rollout imports it; RL2's metadata does not list it
    needs=(("sglang-router", ">=0.2.2"),),
    install=(
        "pip install torch==2.8.0 ninja packaging wheel",
        "pip install flash-attn==2.8.3 --no-build-isolation",
        "pip install '.[rl2]' -c constraints/rl2.txt",
    ),
    capabilities=Capabilities(
        several_sequences=True,  # `cu_seqs` groups the sequences of one trajectory
        masked_turns=True,  # by `action_mask`
        failed_episodes=True,  # as padding sequences
        groups=True,  # RL2 plays each prompt `responses_per_prompt` times
        critic_values=True,  # of a critic per token, at the first token of each turn
    ),
    status="ready",
    summary="PPOTrainer on gem's episodes, with gem's advantages instead of compute_advantages",
    gpu="one H200: training, conformance in bfloat16; "
    "RL2 0.0.2, torch 2.11, vLLM 0.24 in place of SGLang, torch's attention in place of flash-attn",
)

register_adapters = registration(ADAPTER)
__getattr__ = lazy_exports(
    ADAPTER,
    {
        "GemConfig": "config",
        "GemPPOTrainer": "trainer",
        "compose": "config",
        "train": "trainer",
    },
)
