"""Environment ids of the worlds. Listing them imports no world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["register_worlds"]

# As in AgentGym, the action is on its own line after a thought. Text without such a line is the
# action itself.
_REACT = (("react", {"place": "observation", "on_error": "pass"}),)

_MAZES = {
    "DoubleT-v0": {"layout": "double_t", "max_turns": 50},
    "Random-v0": {"size": 11, "max_turns": 60},
    "Random-v0-easy": {"size": 7, "max_turns": 30},
    "Random-v0-hard": {"size": 15, "show_position": False, "max_turns": 150},
}


def register_worlds(register: Callable[..., Any]) -> None:
    """Register every world."""
    _register_mazes(register)


def _register_mazes(register: Callable[..., Any]) -> None:
    for name, kwargs in _MAZES.items():
        register(
            f"maze:{name}",
            "gem_envs.worlds.maze:Maze",
            kwargs=kwargs,
            wrappers=_REACT,
            summary="walk to a goal, seeing only the walls next to you",
            turns=kwargs["max_turns"],
            reward="terminal: 1 for the goal",
            data="generated",
        )
