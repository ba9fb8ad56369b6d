"""gem for OpenRLHF: episodes and per-turn advantages for train_ppo_ray. Importing this package needs no OpenRLHF."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gem_core.adapter_kit.declaration import Adapter, Capabilities
from gem_core.adapter_kit.exports import lazy_exports
from gem_core.plugins.hookspecs import hookimpl

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
    versions=">=0.11.2,<0.12",  # 0.11.2 is tested
    python=">=3.10,<3.13",  # there are wheels for 3.10, 3.11 and 3.12
    platforms=(
        "linux-x86_64",
    ),  # the tag of its wheels, which hold no compiled code; for others, see the README
    needs=(
        ("vllm", "==0.29.0"),  # an extra of OpenRLHF, which its rollouts need
        (
            "flash-attn",
            "==2.8.3",
        ),  # imported with any attention; has to be built before OpenRLHF is installed
    ),
    install=(
        "pip install torch==2.13.0 ninja packaging wheel",
        "pip install flash-attn==2.8.3 --no-build-isolation",
        "pip install '.[openrlhf]' -c constraints/openrlhf.txt",
    ),
    capabilities=Capabilities(
        several_sequences=False,  # an agent executor returns exactly one sequence per call
        masked_turns=True,  # by `action_ranges`
        failed_episodes=True,  # a padding sequence; gem's training step keeps OpenRLHF from dividing by its zero tokens
        groups=True,  # `n_samples_per_prompt` calls share a label
        critic_values=False,  # its critic's values are per token, and its trainer does not know turns
    ),
    status="ready",
    summary="an agent executor, and a trainer class whose experience maker computes the advantages",
)


@hookimpl
def register_adapters(register: Callable[..., Any]) -> None:
    """Register this adapter."""
    register(ADAPTER)


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
