"""gem for Tinker: a training loop with per-turn advantages. Importing it loads no Tinker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gem_core.adapter_kit.declaration import Adapter, Capabilities
from gem_core.adapter_kit.exports import lazy_exports, registration

if TYPE_CHECKING:
    from gem_tinker.config import GemConfig, TinkerSettings
    from gem_tinker.trainer import train

__all__ = ["ADAPTER", "GemConfig", "TinkerSettings", "register_adapters", "train"]

ADAPTER = Adapter(
    name="tinker",
    package="gem_tinker",
    distribution="tinker",
    import_name="tinker",
    extra="tinker",
    versions=">=0.36,<0.37",  # tested: 0.36.0
    python=">=3.11",  # Tinker's own range
    platforms=("linux-*", "darwin-*", "win32-*"),  # a client of a remote service
    needs=(),
    install=("pip install '.[tinker]' -c constraints/tinker.txt",),
    capabilities=Capabilities(
        several_sequences=True,  # a request takes any number of sequences
        masked_turns=True,  # tokens with an advantage of 0
        failed_episodes=True,  # they are dropped
        groups=True,  # `samples` episodes per seed
        critic_values=False,  # Tinker has no critic
    ),
    status="ready",
    summary="a training loop on Tinker's clients, with gem's advantages in each Datum",
    gpu="no: its service is remote",
)

register_adapters = registration(ADAPTER)
__getattr__ = lazy_exports(
    ADAPTER, {"GemConfig": "config", "TinkerSettings": "config", "train": "trainer"}
)
