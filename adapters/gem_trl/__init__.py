"""gem for TRL: what this adapter is and can. Importing it needs no TRL; using what it offers does."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gem_core.adapter_kit.declaration import Adapter, Capabilities
from gem_core.errors import MissingDependencyError
from gem_core.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from gem_trl.advantage import GemAdvantages, GemGRPOTrainer, install_gem_advantages
    from gem_trl.config import GemConfig
    from gem_trl.rollout import GemRollout

__all__ = ["ADAPTER", "GemAdvantages", "GemGRPOTrainer", "GemRollout", "GemConfig", "install_gem_advantages", "register_adapters"]

_OFFERS = {
    "GemAdvantages": "gem_trl.advantage",
    "GemGRPOTrainer": "gem_trl.advantage",
    "GemRollout": "gem_trl.rollout",
    "GemConfig": "gem_trl.config",
    "install_gem_advantages": "gem_trl.advantage",
}

ADAPTER = Adapter(
    name="trl",
    package="gem_trl",
    distribution="trl",
    import_name="trl",
    extra="trl",
    versions=">=1.10,<2",  # 1.10.0 and 1.16.0 are tested
    python=">=3.11",  # TRL's own floor
    platforms=("linux-*", "darwin-*", "win32-*"),  # a pure wheel: wherever torch is
    needs=(),
    install=("pip install '.[trl]' -c constraints/trl.txt",),
    capabilities=Capabilities(
        several_sequences=False,  # a rollout function returns exactly one row per prompt
        masked_turns=True,  # by `env_mask`
        failed_episodes=True,  # a placeholder row: the loss divides by at least one token
        groups=True,  # prompts arrive `num_generations` times
        critic_values=False,  # GRPOTrainer has no critic
    ),
    status="ready",
    summary="a rollout function for GRPOTrainer, and per-token advantages in place of its own",
)


@hookimpl
def register_adapters(register: Callable[..., Any]) -> None:
    """The one adapter of this package."""
    register(ADAPTER)


def __getattr__(name: str) -> Any:
    """What the adapter offers, imported when it is first asked for."""
    if name not in _OFFERS:
        raise AttributeError(f"module 'gem_trl' has no attribute {name!r}")
    try:
        return getattr(import_module(_OFFERS[name]), name)
    except ImportError as error:
        raise MissingDependencyError(f"gem_trl.{name}", ADAPTER.extra, str(error)) from error
