"""Players: the floor and the ceiling of every table by name, `random` and `expert`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary

from gem_core.env.action_format import format_of
from gem_core.env.base import Env
from gem_core.errors import ConfigError, PolicyError
from gem_core.policies.base import Player

__all__ = ["PLAYERS", "ExpertPlayer", "RandomPlayer", "expert_of", "player_named", "unplayable"]

PLAYERS = ("random", "expert")


class RandomPlayer:
    """Plays `env.sample_action()`: the floor of every table."""

    def act(self, env: Env, observation: str) -> str:
        """A legal action chosen at random."""
        return env.sample_action()


class ExpertPlayer:
    """Plays what the scripted expert of each environment plays, in the environment's action format."""

    def __init__(self) -> None:
        self._playing: WeakKeyDictionary[Env, Iterator[str]] = WeakKeyDictionary()

    def act(self, env: Env, observation: str) -> str:
        """The expert's next action."""
        inner = env.unwrapped
        if inner.turn == 0 or inner not in self._playing:
            start = expert_of(env)
            if start is None:
                raise PolicyError(
                    f"{type(inner).__name__} has no expert; an environment offers one as a method, expert()"
                )
            self._playing[inner] = start()
        action = next(self._playing[inner], None)
        if action is None:
            raise PolicyError(
                f"the expert of {type(inner).__name__} has no action left, and the episode is not over"
            )
        form = format_of(env)
        return action if form is None else form.write(action)


def expert_of(env: Env) -> Callable[[], Iterator[str]] | None:
    """The `expert()` of an environment, a generator over the bare actions of one episode; None where it has none."""
    return getattr(env.unwrapped, "expert", None)


def player_named(name: str) -> Player:
    """`random` or `expert`."""
    if name not in PLAYERS:
        raise ConfigError(f"a player is one of {', '.join(PLAYERS)}; given: {name!r}")
    return RandomPlayer() if name == "random" else ExpertPlayer()


def unplayable(name: str, env: Env) -> str:
    """Why a player cannot play an environment; empty where it can."""
    if name == "random" and not env.unwrapped.plays_at_random:
        return f"{type(env.unwrapped).__name__} has no sample_action()"
    if name == "expert" and expert_of(env) is None:
        return f"{type(env.unwrapped).__name__} has no expert()"
    return ""
