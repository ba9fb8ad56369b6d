"""gem for TRL: episodes and per-turn advantages for GRPOTrainer. Importing this package needs no TRL."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gem_core.adapter_kit.declaration import Adapter, Capabilities
from gem_core.adapter_kit.exports import lazy_exports
from gem_core.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from gem_trl.config import GemConfig
    from gem_trl.rollout import GemRollout
    from gem_trl.trainer import GemAdvantages, GemGRPOTrainer, train, trainer_kwargs

__all__ = [
    "ADAPTER",
    "GemAdvantages",
    "GemConfig",
    "GemGRPOTrainer",
    "GemRollout",
    "register_adapters",
    "train",
    "trainer_kwargs",
]

ADAPTER = Adapter(
    name="trl",
    package="gem_trl",
    distribution="trl",
    import_name="trl",
    extra="trl",
    versions=">=1.10,<2",  # 1.10.0 and 1.16.0 are tested
    python=">=3.11",  # TRL's own minimum
    platforms=("linux-*", "darwin-*", "win32-*"),  # a pure wheel: wherever torch is
    needs=(),
    install=("pip install '.[trl]' -c constraints/trl.txt",),
    capabilities=Capabilities(
        several_sequences=False,  # a rollout function returns exactly one sequence per prompt
        masked_turns=True,  # by `env_mask`
        failed_episodes=True,  # a padding sequence: the loss divides by at least one token
        groups=True,  # prompts arrive `num_generations` times
        critic_values=False,  # GRPOTrainer has no critic
    ),
    status="ready",
    summary="a rollout function for GRPOTrainer, and per-token advantages instead of its own",
)


@hookimpl
def register_adapters(register: Callable[..., Any]) -> None:
    """Register this adapter."""
    register(ADAPTER)


__getattr__ = lazy_exports(
    ADAPTER,
    {
        "GemAdvantages": "trainer",
        "GemConfig": "config",
        "GemGRPOTrainer": "trainer",
        "GemRollout": "rollout",
        "train": "trainer",
        "trainer_kwargs": "trainer",
    },
)
