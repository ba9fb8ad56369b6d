"""gem for OpenRLHF: what this adapter is and can. Importing it needs no OpenRLHF."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gem_core.adapter import Adapter, Capabilities
from gem_core.hookspecs import hookimpl

__all__ = ["ADAPTER", "register_adapters"]

ADAPTER = Adapter(
    name="openrlhf",
    package="gem_openrlhf",
    distribution="openrlhf",
    import_name="openrlhf",
    extra="openrlhf",
    versions=">=0.11.2,<0.12",  # 0.11.2 was read and run
    python=">=3.10,<3.13",  # there are wheels for 3.10, 3.11 and 3.12
    platforms=("linux-x86_64",),  # the only wheels there are
    needs=(("vllm", "==0.29.0"),),  # an extra of OpenRLHF's, which its rollouts need
    install=(
        "pip install torch ninja packaging wheel",
        "pip install flash-attn==2.8.3 --no-build-isolation",
        "pip install '.[openrlhf]' -c constraints/openrlhf.txt",
    ),
    capabilities=Capabilities(
        several_rows=False,  # an agent executor returns exactly one sequence per call
        masked_turns=True,  # by `action_ranges`
        void_episodes=False,  # a sequence without an action divides by zero in its masked mean
        groups=True,  # `n_samples_per_prompt` calls share a label
        critic_values=False,  # its critic's values are per token; not tried
    ),
    status="planned",
    summary="an agent executor, and a trainer class whose experience maker computes the advantages",
)


@hookimpl
def register_adapters(register: Callable[..., Any]) -> None:
    """The one adapter of this package."""
    register(ADAPTER)
