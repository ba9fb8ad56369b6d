"""A plugin for gem: registers what the other modules define, and listens to one event.

Environments and wrappers are registered as `module:name`, so that nothing is imported before somebody makes one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from gem_core import Episode, hookimpl
from gem_example_plugin.centred import centred

__all__ = ["stops"]

stops: Counter[str] = Counter()
"""How often an episode of this process ended in each way."""


@hookimpl
def register_environments(register: Callable[..., Any]) -> None:
    """One environment in two variants."""
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
    """One wrapper, for any environment."""
    register(
        "turn_cost",
        "gem_example_plugin.turn_cost:TurnCost",
        summary="takes a little off the reward of every turn",
    )


@hookimpl
def register_estimators(register: Callable[..., Any]) -> None:
    """One estimator, for every adapter and recipe."""
    register("centred", centred)


@hookimpl
def episode_end(episode: Episode) -> None:
    """Called for every episode, finished or failed. A real plugin would log, or draw."""
    stops[episode.stop.value] += 1
