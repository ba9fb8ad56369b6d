"""gem for verl: plays episodes for verl's PPO trainers and computes per-turn advantages.

Importing this package does not import verl.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gem_core.adapter_kit.declaration import Adapter, Capabilities
from gem_core.adapter_kit.exports import lazy_exports, registration

if TYPE_CHECKING:
    from gem_verl.config import GemConfig
    from gem_verl.dataset import GemDataset
    from gem_verl.rollout import GemAgentLoop
    from gem_verl.trainer import GemTrainer, train

__all__ = [
    "ADAPTER",
    "GemAgentLoop",
    "GemConfig",
    "GemDataset",
    "GemTrainer",
    "register_adapters",
    "train",
]

ADAPTER = Adapter(
    name="verl",
    package="gem_verl",
    distribution="verl",
    import_name="verl",
    extra="verl",
    versions=">=0.9,<0.10",  # tested: 0.9.1
    python=">=3.10,<3.13",  # verl's own range
    platforms=("linux-x86_64", "linux-aarch64"),  # vLLM and SGLang are Linux only
    # the default trainer imports these; verl's metadata does not list them
    needs=(
        ("TransferQueue", ">=0.1.10"),
        ("cachetools", ">=5"),
        ("fastapi", ">=0.110"),
        ("uvicorn", ">=0.30"),
    ),
    install=("pip install '.[verl]' -c constraints/verl.txt",),
    capabilities=Capabilities(
        several_sequences=True,  # in V1, an agent loop may return a list of outputs
        masked_turns=True,  # by `response_mask`
        failed_episodes=True,  # as padding sequences
        groups=True,  # verl plays each prompt `rollout.n` times
        critic_values=True,  # V1 stores the critic's value of every response token
    ),
    status="ready",
    summary="an agent loop, and trainers that compute advantages from turn rewards",
    gpu="one H200: training, one update at 1.7B parameters, conformance in bfloat16; "
    "verl 0.9.1, vLLM 0.24, torch 2.11",
)

register_adapters = registration(ADAPTER)
__getattr__ = lazy_exports(
    ADAPTER,
    {
        "GemAgentLoop": "rollout",
        "GemConfig": "config",
        "GemDataset": "dataset",
        "GemTrainer": "trainer",
        "train": "trainer",
    },
)
