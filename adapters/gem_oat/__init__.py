"""gem for oat: plays episodes for its multi-turn PPO and computes per-turn advantages.

Importing this package does not import oat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gem_core.adapter_kit.declaration import Adapter, Capabilities
from gem_core.adapter_kit.exports import lazy_exports, registration

if TYPE_CHECKING:
    from gem_oat.config import GemConfig
    from gem_oat.convert import GemTransition
    from gem_oat.rollout import GemActor
    from gem_oat.trainer import GemLearner, ppo_kwargs, program, train

__all__ = [
    "ADAPTER",
    "GemActor",
    "GemConfig",
    "GemLearner",
    "GemTransition",
    "ppo_kwargs",
    "program",
    "register_adapters",
    "train",
]

ADAPTER = Adapter(
    name="oat",
    package="gem_oat",
    distribution="oat-llm",
    import_name="oat",
    extra="oat-llm",
    versions=">=0.2.4,<0.3",  # tested: 0.2.4
    python=">=3.10,<3.11",  # oat's own range, from gem_core's minimum
    platforms=("linux-x86_64",),  # dm-launchpad and vllm 0.8.4 have no other wheels
    needs=(),
    install=(
        "pip install vllm==0.8.4 ninja packaging wheel",
        "pip install flash-attn==2.7.4.post1 --no-build-isolation",
        "pip install '.[oat-llm]' -c constraints/oat.txt",
    ),
    capabilities=Capabilities(
        several_sequences=True,  # every turn is a separate transition
        masked_turns=True,  # by `Transition.loss_mask`
        failed_episodes=True,  # as padding transitions
        groups=True,  # gem's actor plays each seed `samples` times
        critic_values=True,  # oat's critic returns one value per transition
    ),
    status="ready",
    summary="a multi-turn actor for get_program, and a learner with gem's advantages",
    gpu="one H200: one update, conformance in bfloat16 with a mock of vLLM; "
    "oat 0.2.4, vLLM 0.24, torch 2.11, mocks of launchpad and plasma",
)

register_adapters = registration(ADAPTER)
__getattr__ = lazy_exports(
    ADAPTER,
    {
        "GemActor": "rollout",
        "GemConfig": "config",
        "GemLearner": "trainer",
        "GemTransition": "convert",
        "ppo_kwargs": "trainer",
        "program": "trainer",
        "train": "trainer",
    },
)
