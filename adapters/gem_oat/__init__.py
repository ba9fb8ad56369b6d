"""gem for oat: what this adapter is and can. Importing it needs no oat; using what it offers does."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gem_core.adapter_kit.declaration import Adapter, Capabilities
from gem_core.errors import MissingDependencyError
from gem_core.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from gem_oat.advantage import GemLearner
    from gem_oat.config import GemConfig
    from gem_oat.convert import GemTransition
    from gem_oat.rollout import GemActor

__all__ = ["ADAPTER", "GemActor", "GemLearner", "GemConfig", "GemTransition", "register_adapters"]

_OFFERS = {
    "GemActor": "gem_oat.rollout",
    "GemLearner": "gem_oat.advantage",
    "GemConfig": "gem_oat.config",
    "GemTransition": "gem_oat.convert",
}

ADAPTER = Adapter(
    name="oat",
    package="gem_oat",
    distribution="oat-llm",
    import_name="oat",
    extra="oat-llm",
    versions=">=0.2.4,<0.3",  # 0.2.4, the newest, is tested
    python=">=3.10,<3.11",  # oat ends below 3.11, gem_core begins at 3.10
    platforms=("linux-x86_64",),  # dm-launchpad and vllm 0.8.4 have no other wheels
    needs=(),
    install=(
        "pip install vllm==0.8.4 ninja packaging wheel",
        "pip install flash-attn==2.7.4.post1 --no-build-isolation",
        "pip install '.[oat-llm]' -c constraints/oat.txt",
    ),
    capabilities=Capabilities(
        several_sequences=True,  # every turn is a transition of its own
        masked_turns=True,  # by `Transition.loss_mask`
        failed_episodes=True,  # one untrained transition in their place: a batch has an exact size
        groups=True,  # an actor starts its episodes itself
        critic_values=True,  # oat's critic gives one value per transition
    ),
    status="ready",
    summary="a multi-turn actor and learner for get_program",
)


@hookimpl
def register_adapters(register: Callable[..., Any]) -> None:
    """The one adapter of this package."""
    register(ADAPTER)


def __getattr__(name: str) -> Any:
    """What the adapter offers, imported when it is first asked for."""
    if name not in _OFFERS:
        raise AttributeError(f"module 'gem_oat' has no attribute {name!r}")
    try:
        return getattr(import_module(_OFFERS[name]), name)
    except ImportError as error:
        raise MissingDependencyError(f"gem_oat.{name}", ADAPTER.extra, str(error)) from error
