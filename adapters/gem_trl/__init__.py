"""gem for TRL: plays episodes for GRPOTrainer and computes per-turn advantages.

Importing this package does not import TRL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gem_core.adapter_kit.declaration import Adapter, Capabilities
from gem_core.adapter_kit.exports import lazy_exports, registration

if TYPE_CHECKING:
    from gem_trl.config import GemConfig
    from gem_trl.rollout import GemRollout
    from gem_trl.trainer import GemAdvantages, GemGRPOTrainer, train, trainer_kwargs

__all__ = [
    "ADAPTER",
    "GemAdvantages",
    "GemConfig",
    "GemGRPOTrainer",
    "GemRollout",
    "register_adapters",
    "train",
    "trainer_kwargs",
]

ADAPTER = Adapter(
    name="trl",
    package="gem_trl",
    distribution="trl",
    import_name="trl",
    extra="trl",
    versions=">=1.10,<2",  # tested: 1.10.0, 1.16.0
    python=">=3.11",  # TRL's own range
    platforms=("linux-*", "darwin-*", "win32-*"),  # a pure wheel: every platform of torch
    needs=(),
    install=("pip install '.[trl]' -c constraints/trl.txt",),
    capabilities=Capabilities(
        several_sequences=True,  # as further rows of the batch, after one row per prompt
        masked_turns=True,  # by `env_mask`
        failed_episodes=True,  # as padding sequences: the loss divides by at least one token
        groups=True,  # TRL plays each prompt `num_generations` times
        critic_values=False,  # TRL has no critic per turn
    ),
    status="ready",
    summary="a rollout function for GRPOTrainer, and gem's advantages instead of its own",
    gpu="one H200: training, one update at 1.7B parameters, conformance in bfloat16; "
    "TRL 1.16, vLLM 0.24, torch 2.11",
)

register_adapters = registration(ADAPTER)
__getattr__ = lazy_exports(
    ADAPTER,
    {
        "GemAdvantages": "trainer",
        "GemConfig": "config",
        "GemGRPOTrainer": "trainer",
        "GemRollout": "rollout",
        "train": "trainer",
        "trainer_kwargs": "trainer",
    },
)
