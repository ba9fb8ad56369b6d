"""gem for RL2: what this adapter is and can. Importing it needs no RL2; using what it offers does."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gem_core.adapter_kit.declaration import Adapter, Capabilities
from gem_core.errors import MissingDependencyError
from gem_core.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from gem_rl2.advantage import GemPPOTrainer
    from gem_rl2.config import GemConfig, compose
    from gem_rl2.interface import start_process_group, which_rl2

__all__ = ["ADAPTER", "GemPPOTrainer", "GemConfig", "compose", "register_adapters", "start_process_group", "which_rl2"]

_OFFERS = {
    "GemPPOTrainer": "gem_rl2.advantage",
    "GemConfig": "gem_rl2.config",
    "compose": "gem_rl2.config",
    "which_rl2": "gem_rl2.interface",
    "start_process_group": "gem_rl2.interface",
}

ADAPTER = Adapter(
    name="rl2",
    package="gem_rl2",
    distribution="rl-square",
    import_name="RL2",
    extra="rl2",
    versions="==0.0.2",  # the newest release; RL2's main branch has another API under the same number, and is told apart
    python=">=3.10,<3.14",  # RL2's own floor; torch 2.8, which it pins, ends with 3.13
    platforms=("linux-x86_64",),  # sglang 0.5.2 has GPU kernels for x86_64 only
    needs=(("sglang-router", ">=0.2.2"),),  # its rollout imports it, RL2's metadata does not list it
    install=(
        "pip install torch==2.8.0 ninja packaging wheel",
        "pip install flash-attn==2.8.3 --no-build-isolation",
        "pip install '.[rl2]' -c constraints/rl2.txt",
    ),
    capabilities=Capabilities(
        several_sequences=True,  # `cu_seqs` says which rows are one trajectory
        masked_turns=True,  # by `action_mask`
        failed_episodes=True,  # a placeholder row: without a trained token it weighs nothing at `avg_level=token`
        groups=True,  # `responses_per_prompt` rollouts of one dataset row
        critic_values=False,  # RL2's critic has a value per token, and its own `gae` uses them so
    ),
    status="ready",
    summary="its PPOTrainer with episodes in place of its rollout loop, and compute_advantages replaced by name",
)


@hookimpl
def register_adapters(register: Callable[..., Any]) -> None:
    """The one adapter of this package."""
    register(ADAPTER)


def __getattr__(name: str) -> Any:
    """What the adapter offers, imported when it is first asked for."""
    if name not in _OFFERS:
        raise AttributeError(f"module 'gem_rl2' has no attribute {name!r}")
    try:
        return getattr(import_module(_OFFERS[name]), name)
    except ImportError as error:
        raise MissingDependencyError(f"gem_rl2.{name}", ADAPTER.extra, str(error)) from error
