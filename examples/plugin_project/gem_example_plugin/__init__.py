"""Example plugin for gem: an environment, a wrapper, an advantage estimator and an event hook.

Environments and wrappers are registered as `module:name`, so gem imports them only when it makes
one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from gem_core import Episode, hookimpl
from gem_example_plugin.centred import centred

__all__ = ["stops"]

stops: Counter[str] = Counter()
"""Episodes of this process by stop reason."""


@hookimpl
def register_environments(register: Callable[..., Any]) -> None:
    """Register an environment in two variants."""
    for variant, letters in (("", 5), ("-long", 7)):
        register(
            f"example:Anagram-v0{variant}",
            "gem_example_plugin.anagram:Anagram",
            kwargs={"letters": letters},
            wrappers=["boxed"],
            summary=f"unscramble a word of {letters} letters; each miss reveals one",
            turns=3,
            reward="terminal: 1, less a third for each miss",
            data="built in",
        )


@hookimpl
def register_wrappers(register: Callable[..., Any]) -> None:
    """Register a wrapper for any environment."""
    register(
        "turn_cost",
        "gem_example_plugin.turn_cost:TurnCost",
        summary="subtracts a small cost from the reward of every turn",
    )


@hookimpl
def register_estimators(register: Callable[..., Any]) -> None:
    """Register an advantage estimator for every adapter and recipe."""
    register("centred", centred)


@hookimpl
def episode_end(episode: Episode) -> None:
    """Count the stop reason of every episode, finished or failed."""
    stops[episode.stop.value] += 1
