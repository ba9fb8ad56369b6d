"""gem for verl: what this adapter is and can. Importing it needs no verl."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gem_core.adapter import Adapter, Capabilities
from gem_core.hookspecs import hookimpl

__all__ = ["ADAPTER", "register_adapters"]

ADAPTER = Adapter(
    name="verl",
    package="gem_verl",
    distribution="verl",
    import_name="verl",
    extra="verl",
    versions=">=0.9,<0.10",  # 0.9.1 was read and run
    python=">=3.10,<3.13",  # verl's own range
    platforms=("linux-x86_64", "linux-aarch64"),  # vLLM and SGLang are Linux only
    needs=(("TransferQueue", ">=0.1.10"),),  # the default trainer imports it, verl's metadata does not list it
    install=("pip install '.[verl]' -c constraints/verl.txt",),
    capabilities=Capabilities(
        several_rows=True,  # an agent loop may return a list of outputs (the default trainer, V1)
        masked_turns=True,  # by `response_mask`
        void_episodes=True,  # rows without a single trained token are padding to verl already
        groups=True,  # by `uid`
        critic_values=False,  # a registered estimator is not handed the critic's values
    ),
    status="planned",
    summary="an agent loop, and a registered advantage estimator",
)


@hookimpl
def register_adapters(register: Callable[..., Any]) -> None:
    """The one adapter of this package."""
    register(ADAPTER)
