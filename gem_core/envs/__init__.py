"""Environments that come with gem, registered as an ordinary plugin. Nothing here is imported before it is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gem_core.hookspecs import hookimpl

__all__ = ["register_environments"]

_BOXED = (("boxed", {"place": "observation"}),)


@hookimpl
def register_environments(register: Callable[..., Any]) -> None:
    """The games of the reference suite, under its ids and with its parameters."""
    for variant, kwargs, turns in (
        ("", {}, 4),
        ("-easy", {"min_number": 1, "max_number": 10, "max_turns": 4}, 4),
        ("-hard", {"min_number": 1, "max_number": 50, "max_turns": 7}, 7),
        ("-random", {"randomize": True}, None),
    ):
        register(
            f"game:GuessTheNumber-v0{variant}",
            "gem_core.envs.guess_the_number:GuessTheNumber",
            kwargs=kwargs,
            wrappers=_BOXED,
            summary="find a hidden number from higher and lower hints",
            turns=turns,
            reward="terminal: 1 for the number, up to 0.5 for a near miss at the last guess",
            data="synthetic",
        )
