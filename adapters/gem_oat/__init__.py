"""gem for oat: what this adapter is and can. Importing it needs no oat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gem_core.adapter import Adapter, Capabilities
from gem_core.hookspecs import hookimpl

__all__ = ["ADAPTER", "register_adapters"]

ADAPTER = Adapter(
    name="oat",
    package="gem_oat",
    distribution="oat-llm",
    import_name="oat",
    extra="oat-llm",
    versions=">=0.2.4,<0.3",  # 0.2.4 was read and run
    python=">=3.10,<3.11",  # oat ends below 3.11, gem_core begins at 3.10
    platforms=("linux-x86_64",),  # dm-launchpad and vllm 0.8.4 have no other wheels
    needs=(),
    install=(
        "pip install vllm==0.8.4 ninja packaging wheel",
        "pip install flash-attn==2.7.4.post1 --no-build-isolation",
        "pip install '.[oat-llm]' -c constraints/oat.txt",
    ),
    capabilities=Capabilities(
        several_rows=True,  # every turn is a transition of its own
        masked_turns=True,  # by `Transition.loss_mask`
        void_episodes=True,  # an actor returns the episodes it likes
        groups=True,  # an actor starts its episodes itself
        critic_values=True,  # `compute_advantages` is given one value per transition
    ),
    status="planned",
    summary="a multi-turn actor and learner for get_program",
)


@hookimpl
def register_adapters(register: Callable[..., Any]) -> None:
    """The one adapter of this package."""
    register(ADAPTER)
