"""Hooks: what a plugin may implement. Each registration hook is given a `register` callback."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from gem_core.types import Episode, Task, Turn

__all__ = ["hookimpl", "hookspec"]

hookspec = pluggy.HookspecMarker("gem")
hookimpl = pluggy.HookimplMarker("gem")


@hookspec(historic=True)
def register_environments(register: Callable[..., Any]) -> None:
    """Call `register(id, entry_point, kwargs=..., ...)`, as `gem_core.register`."""


@hookspec(historic=True)
def register_wrappers(register: Callable[..., Any]) -> None:
    """Call `register(name, entry_point, ...)`, as `gem_core.register_wrapper`."""


@hookspec(historic=True)
def register_tools(register: Callable[..., Any]) -> None:
    """Call `register(name, entry_point, ...)`, as `gem_tools.register_tool`."""


@hookspec(historic=True)
def register_adapters(register: Callable[..., Any]) -> None:
    """Call `register(adapter)` with a `gem_core.adapter_kit.declaration.Adapter`."""


@hookspec(historic=True)
def register_estimators(register: Callable[..., Any]) -> None:
    """Call `register(name, function)`, as `gem_core.training.advantage.register_estimator`."""


@hookspec(historic=True)
def register_commands(register: Callable[..., Any]) -> None:
    """Call `register(name, module)` to add the command `gem-rl NAME`; `gem_core.cli` says what the module defines."""


@hookspec
def episode_start(task: Task, seed: int) -> None:
    """An episode begins."""


@hookspec
def turn_end(task: Task, number: int, turn: Turn) -> None:
    """A turn was answered by the environment, or became failed."""


@hookspec
def episode_end(episode: Episode) -> None:
    """An episode is over, finished or failed."""


@hookspec
def batch_end(episodes: Sequence[Episode]) -> None:
    """All episodes of a batch are over; in task order."""


@hookspec
def update_end(step: int, metrics: Mapping[str, float | None]) -> None:
    """A training run wrote the numbers of an update to its metrics file."""
