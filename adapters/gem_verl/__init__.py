"""gem for verl: what this adapter is and can. Importing it needs no verl; using what it offers does."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gem_core.adapter_kit.declaration import Adapter, Capabilities
from gem_core.errors import MissingDependencyError
from gem_core.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from gem_verl.config import GemConfig
    from gem_verl.dataset import GemDataset
    from gem_verl.rollout import GemAgentLoop
    from gem_verl.trainer import GemTrainer
    from gem_verl.worker import GemAgentLoopManager

__all__ = ["ADAPTER", "GemAgentLoop", "GemAgentLoopManager", "GemDataset", "GemConfig", "GemTrainer", "register_adapters"]

_OFFERS = {
    "GemAgentLoop": "gem_verl.rollout",
    "GemAgentLoopManager": "gem_verl.worker",
    "GemDataset": "gem_verl.dataset",
    "GemConfig": "gem_verl.config",
    "GemTrainer": "gem_verl.trainer",
}

ADAPTER = Adapter(
    name="verl",
    package="gem_verl",
    distribution="verl",
    import_name="verl",
    extra="verl",
    versions=">=0.9,<0.10",  # 0.9.1 is tested
    python=">=3.10,<3.13",  # verl's own range
    platforms=("linux-x86_64", "linux-aarch64"),  # vLLM and SGLang are Linux only
    # what the default trainer imports and verl's metadata does not list
    needs=(("TransferQueue", ">=0.1.10"), ("cachetools", ">=5"), ("fastapi", ">=0.110"), ("uvicorn", ">=0.30")),
    install=("pip install '.[verl]' -c constraints/verl.txt",),
    capabilities=Capabilities(
        several_sequences=True,  # an agent loop may return a list of outputs (the default trainer, V1)
        masked_turns=True,  # by `response_mask`
        failed_episodes=True,  # rows without a single trained token are padding to verl already
        groups=True,  # by `uid`, and by session where an episode has several rows
        critic_values=False,  # a registered estimator is not handed the critic's values
    ),
    status="ready",
    summary="an agent loop, registered advantage estimators, and a trainer that logs how episodes went",
)


@hookimpl
def register_adapters(register: Callable[..., Any]) -> None:
    """The one adapter of this package."""
    register(ADAPTER)


def __getattr__(name: str) -> Any:
    """What the adapter offers, imported when it is first asked for."""
    if name not in _OFFERS:
        raise AttributeError(f"module 'gem_verl' has no attribute {name!r}")
    try:
        return getattr(import_module(_OFFERS[name]), name)
    except ImportError as error:
        raise MissingDependencyError(f"gem_verl.{name}", ADAPTER.extra, str(error)) from error
