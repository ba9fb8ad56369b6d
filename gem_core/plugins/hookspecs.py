"""Hook specifications for plugins. Each registration hook receives a `register` callback."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from gem_core.types import Episode, Task, Turn

__all__ = ["hookimpl", "hookspec"]

hookspec = pluggy.HookspecMarker("gem")
hookimpl = pluggy.HookimplMarker("gem")
"""Mark a function of a plugin as the implementation of a hook."""


@hookspec(historic=True)
def register_environments(register: Callable[..., Any]) -> None:
    """Call `register(id, entry_point, kwargs=..., ...)`, like `gem_core.register`."""


@hookspec(historic=True)
def register_wrappers(register: Callable[..., Any]) -> None:
    """Call `register(name, entry_point, ...)`, like `gem_core.register_wrapper`."""


@hookspec(historic=True)
def register_tools(register: Callable[..., Any]) -> None:
    """Call `register(name, entry_point, ...)`, like `gem_tools.register_tool`."""


@hookspec(historic=True)
def register_adapters(register: Callable[..., Any]) -> None:
    """Call `register(adapter)` with a `gem_core.adapter_kit.declaration.Adapter`."""


@hookspec(historic=True)
def register_estimators(register: Callable[..., Any]) -> None:
    """Call `register(name, function)`, like `gem_core.training.advantage.register_estimator`."""


@hookspec(historic=True)
def register_commands(register: Callable[..., Any]) -> None:
    """Call `register(name, module)` to add `gem-rl NAME`; see `gem_core.cli` for the module."""


@hookspec
def episode_start(task: Task, seed: int) -> None:
    """Called when an episode starts."""


@hookspec
def turn_end(task: Task, number: int, turn: Turn) -> None:
    """Called after the environment's step, or when the turn failed."""


@hookspec
def episode_end(episode: Episode) -> None:
    """Called when an episode has ended or failed."""


@hookspec
def batch_end(episodes: Sequence[Episode]) -> None:
    """Called when all episodes of a training batch have ended; not after an evaluation."""


@hookspec
def update_end(step: int, metrics: Mapping[str, float | None]) -> None:
    """Called after each update of a training run, with its metrics."""
