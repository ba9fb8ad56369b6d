"""gem for SkyRL: a generator and trainers with per-turn advantages; imports SkyRL on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gem_core.adapter_kit.declaration import Adapter, Capabilities
from gem_core.adapter_kit.exports import lazy_exports, registration

if TYPE_CHECKING:
    from gem_skyrl.config import GemConfig
    from gem_skyrl.trainer import GemExp, train

__all__ = ["ADAPTER", "GemConfig", "GemExp", "register_adapters", "train"]

ADAPTER = Adapter(
    name="skyrl",
    package="gem_skyrl",
    distribution="skyrl",
    import_name="skyrl",
    extra="skyrl",
    versions=">=0.3,<0.5",  # tested: 0.3.0; the conformance table and a run also with 0.4.0
    python=">=3.12,<3.14",  # pydantic rejects SkyRL's types on 3.11
    platforms=("linux-x86_64", "linux-aarch64"),  # vLLM is Linux only
    needs=(("flash-attn", ">=2.8"), ("ray", ">=2.56"), ("vllm", ">=0.23")),  # in SkyRL's extras
    install=(
        "pip install torch==2.11.0 ninja packaging wheel",
        "pip install flash-attn==2.8.3 --no-build-isolation",
        "pip install '.[skyrl]' -c constraints/skyrl.txt",
    ),
    capabilities=Capabilities(
        several_sequences=True,  # as the steps of a step-wise trajectory
        masked_turns=True,  # by `loss_masks`
        failed_episodes=True,  # as padding sequences
        groups=True,  # SkyRL plays each prompt `n_samples_per_prompt` times
        critic_values=True,  # the batch has the critic's value of every response token
    ),
    status="ready",
    summary="a generator, and trainers that compute advantages from turn rewards",
    gpu="one H200: training, conformance in bfloat16; "
    "SkyRL 0.3.0, vLLM 0.24, torch 2.11, a mock of flash-attn",
)

register_adapters = registration(ADAPTER)
__getattr__ = lazy_exports(
    ADAPTER, {"GemConfig": "config", "GemExp": "trainer", "train": "trainer"}
)
