"""Players: the baseline players `random` and `expert`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary

from gem_core.env.action_format import format_of
from gem_core.env.base import Env
from gem_core.errors import ConfigError, PolicyError
from gem_core.policies.base import Player

__all__ = ["PLAYERS", "ExpertPlayer", "RandomPlayer", "expert_of", "player_named"]

PLAYERS = ("random", "expert")


class RandomPlayer:
    """Plays random legal actions."""

    def act(self, env: Env, observation: str) -> str:
        """Return `env.sample_action()`."""
        return env.sample_action()


class ExpertPlayer:
    """Plays the actions of the environment's `expert()`, in its action format."""

    def __init__(self) -> None:
        self._playing: WeakKeyDictionary[Env, Iterator[str]] = WeakKeyDictionary()

    def act(self, env: Env, observation: str) -> str:
        """Return the expert's next action, or any text if a wrapper asks for a plan or notes."""
        if getattr(env, "text_wanted", False):
            return env.sample_action()
        inner = env.unwrapped
        if inner.turn == 0 or inner not in self._playing:
            start = expert_of(env)
            if start is None:
                raise PolicyError(
                    f"{type(inner).__name__} has no expert; give the environment a method expert()"
                )
            self._playing[inner] = iter(start())
        action = next(self._playing[inner], None)
        if action is None:
            raise PolicyError(
                f"the expert of {type(inner).__name__} ran out of actions before the episode ended"
            )
        form = format_of(env)
        return action if form is None else form.write(action)


def expert_of(env: Env) -> Callable[[], Iterator[str]] | None:
    """Return the environment's `expert()`, which yields one episode's bare actions, or None."""
    return getattr(env.unwrapped, "expert", None)


def player_named(name: str) -> Player:
    """Create the baseline player of that name."""
    if name not in PLAYERS:
        raise ConfigError(f"player must be one of {', '.join(PLAYERS)}, got {name!r}")
    return RandomPlayer() if name == "random" else ExpertPlayer()
