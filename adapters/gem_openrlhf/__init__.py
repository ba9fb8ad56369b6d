"""gem for OpenRLHF: plays episodes for train_ppo_ray and computes per-turn advantages.

Importing this package does not import OpenRLHF.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gem_core.adapter_kit.declaration import Adapter, Capabilities
from gem_core.adapter_kit.exports import lazy_exports, registration

if TYPE_CHECKING:
    from gem_openrlhf.config import GemConfig
    from gem_openrlhf.dataset import write_dataset
    from gem_openrlhf.rollout import GemAgentExecutor
    from gem_openrlhf.trainer import GemExperienceMaker, train

__all__ = [
    "ADAPTER",
    "GemAgentExecutor",
    "GemConfig",
    "GemExperienceMaker",
    "register_adapters",
    "train",
    "write_dataset",
]

ADAPTER = Adapter(
    name="openrlhf",
    package="gem_openrlhf",
    distribution="openrlhf",
    import_name="openrlhf",
    extra="openrlhf",
    versions=">=0.11.2,<0.12",  # tested: 0.11.2
    python=">=3.10,<3.13",  # OpenRLHF's own range
    # the tag of its wheels, which contain no compiled code; the README has a way for other machines
    platforms=("linux-x86_64",),
    needs=(
        ("vllm", "==0.29.0"),  # an extra of OpenRLHF, which its rollouts need
        # OpenRLHF imports it for every attention; build it before you install OpenRLHF
        ("flash-attn", "==2.8.3"),
    ),
    install=(
        "pip install torch==2.13.0 ninja packaging wheel",
        "pip install flash-attn==2.8.3 --no-build-isolation",
        "pip install '.[openrlhf]' -c constraints/openrlhf.txt",
    ),
    capabilities=Capabilities(
        several_sequences=True,  # gem's trainer adds those that an agent executor cannot return
        masked_turns=True,  # by `action_ranges`
        failed_episodes=True,  # as padding sequences; gem's training step prevents 0 / 0
        groups=True,  # OpenRLHF plays each label `n_samples_per_prompt` times
        critic_values=True,  # of a critic per token, at the first token of each turn
    ),
    status="ready",
    summary="an agent executor for its vLLM engines, and gem's advantages instead of its own",
    gpu="one H200: training, conformance in bfloat16; "
    "OpenRLHF 0.11.2, vLLM 0.24, torch 2.11, a mock of flash-attn",
)

register_adapters = registration(ADAPTER)
__getattr__ = lazy_exports(
    ADAPTER,
    {
        "GemAgentExecutor": "rollout",
        "GemConfig": "config",
        "GemExperienceMaker": "trainer",
        "train": "trainer",
        "write_dataset": "dataset",
    },
)
