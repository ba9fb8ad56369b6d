"""gem for RL2: what this adapter is and can. Importing it needs no RL2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gem_core.adapter import Adapter, Capabilities
from gem_core.hookspecs import hookimpl

__all__ = ["ADAPTER", "register_adapters"]

ADAPTER = Adapter(
    name="rl2",
    package="gem_rl2",
    distribution="rl-square",
    import_name="RL2",
    extra="rl2",
    versions="==0.0.2",  # the newest release; RL2's main branch has another API under the same number
    python=">=3.10",  # RL2's own floor
    platforms=("linux-x86_64",),  # sglang 0.5.2 has GPU kernels for x86_64 only
    needs=(("sglang-router", ">=0.2.2"),),  # its rollout imports it, RL2's metadata does not list it
    install=(
        "pip install torch==2.8.0 ninja packaging wheel",
        "pip install flash-attn==2.8.3 --no-build-isolation",
        "pip install '.[rl2]' -c constraints/rl2.txt",
    ),
    capabilities=Capabilities(
        several_rows=True,  # `cu_seqs` says which rows are one trajectory
        masked_turns=True,  # by `action_mask`
        void_episodes=True,  # a row without a trained token weighs nothing at `avg_level=token`
        groups=True,  # `responses_per_prompt` rollouts of one dataset row
        critic_values=False,  # its own `gae` is per token; not tried
    ),
    status="planned",
    summary="an environment file for the rollout, and its compute_advantages replaced by name",
)


@hookimpl
def register_adapters(register: Callable[..., Any]) -> None:
    """The one adapter of this package."""
    register(ADAPTER)
