"""gem for the toy trainer: an adapter to copy. Importing this package needs no trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gem_core.adapter_kit.declaration import Adapter, Capabilities
from gem_core.adapter_kit.exports import lazy_exports, registration

if TYPE_CHECKING:
    from gem_toy.config import GemConfig
    from gem_toy.trainer import GemToyTrainer, train

__all__ = ["ADAPTER", "GemConfig", "GemToyTrainer", "register_adapters", "train"]

# Facts only: `gem-rl adapters` reads them without importing the trainer.
ADAPTER = Adapter(
    name="toy",
    package="gem_toy",
    distribution="toy-trainer",
    import_name="toy_trainer",
    extra="toy",
    versions=">=0",  # the versions that were tested
    python=">=3.10",
    platforms=("linux-*", "darwin-*", "win32-*"),
    needs=(),
    install=("pip install '.[transformers]'",),
    # What the trainer supports. The conformance kit expects a ConfigError for cases that need a
    # missing capability.
    capabilities=Capabilities(
        several_sequences=True,  # a rollout may return any number of samples
        masked_turns=True,  # a mask per token
        failed_episodes=True,  # as a padding sequence: the loss divides by at least one token
        groups=True,  # `samples` episodes per prompt
        critic_values=False,  # there is no critic
    ),
    status="ready",
    summary="a rollout function for ToyTrainer, and per-token advantages instead of its own",
    gpu="no",
)

register_adapters = registration(ADAPTER)
__getattr__ = lazy_exports(
    ADAPTER, {"GemConfig": "config", "GemToyTrainer": "trainer", "train": "trainer"}
)
