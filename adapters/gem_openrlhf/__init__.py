"""gem for OpenRLHF: what this adapter is and can. Importing it needs no OpenRLHF; using what it offers does."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gem_core.adapter_kit.declaration import Adapter, Capabilities
from gem_core.errors import MissingDependencyError
from gem_core.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from gem_openrlhf.advantage import GemExperienceMaker
    from gem_openrlhf.config import GemConfig
    from gem_openrlhf.launcher import launch
    from gem_openrlhf.rollout import GemAgentExecutor
    from gem_openrlhf.trainer import install

__all__ = ["ADAPTER", "GemAgentExecutor", "GemExperienceMaker", "GemConfig", "install", "launch", "register_adapters"]

_OFFERS = {
    "GemAgentExecutor": "gem_openrlhf.rollout",
    "GemExperienceMaker": "gem_openrlhf.advantage",
    "GemConfig": "gem_openrlhf.config",
    "install": "gem_openrlhf.trainer",
    "launch": "gem_openrlhf.launcher",
}

ADAPTER = Adapter(
    name="openrlhf",
    package="gem_openrlhf",
    distribution="openrlhf",
    import_name="openrlhf",
    extra="openrlhf",
    versions=">=0.11.2,<0.12",  # 0.11.2 is tested
    python=">=3.10,<3.13",  # there are wheels for 3.10, 3.11 and 3.12
    platforms=("linux-x86_64",),  # what its wheels are tagged with; they hold no compiled code, see the README for others
    needs=(
        ("vllm", "==0.29.0"),  # an extra of OpenRLHF's, which its rollouts need
        ("flash-attn", "==2.8.3"),  # imported whatever the attention; has to be built before OpenRLHF is installed
    ),
    install=(
        "pip install torch==2.13.0 ninja packaging wheel",
        "pip install flash-attn==2.8.3 --no-build-isolation",
        "pip install '.[openrlhf]' -c constraints/openrlhf.txt",
    ),
    capabilities=Capabilities(
        several_sequences=False,  # an agent executor returns exactly one sequence per call
        masked_turns=True,  # by `action_ranges`
        failed_episodes=True,  # a placeholder row; our trainer keeps OpenRLHF from dividing by its zero tokens
        groups=True,  # `n_samples_per_prompt` calls share a label
        critic_values=False,  # its critic's values are per token, and its trainer has no place for turns
    ),
    status="ready",
    summary="an agent executor, and a trainer class whose experience maker computes the advantages",
)


@hookimpl
def register_adapters(register: Callable[..., Any]) -> None:
    """The one adapter of this package."""
    register(ADAPTER)


def __getattr__(name: str) -> Any:
    """What the adapter offers, imported when it is first asked for."""
    if name not in _OFFERS:
        raise AttributeError(f"module 'gem_openrlhf' has no attribute {name!r}")
    try:
        return getattr(import_module(_OFFERS[name]), name)
    except ImportError as error:
        raise MissingDependencyError(f"gem_openrlhf.{name}", ADAPTER.extra, str(error)) from error
