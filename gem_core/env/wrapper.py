"""Wrapper: an environment around another one.

It defines `on_reset` and `on_step` as generators that `yield` the inner call:

    class Shout(Wrapper):
        def on_step(self, action):
            observation, reward, terminated, truncated, info = yield self.env.step(action.upper())
            return observation, reward, terminated, truncated, info

The same wrapper works for sync and async environments: the outer `step` returns an awaitable if an
inner call returns one, and a plain result otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from types import GeneratorType
from typing import Any

from gem_core.env.base import Env, Offload
from gem_core.env.maybe_async import drive
from gem_core.errors import ConfigError

__all__ = ["Wrapper"]


class Wrapper(Env):
    """Base class of wrappers. Undefined attributes come from the inner environment."""

    def __init__(self, env: Env) -> None:
        if not isinstance(env, Env):
            raise ConfigError(f"{type(self).__name__} wraps an Env, got {type(env).__name__}")
        self.env = env

    def on_reset(self, options: Mapping[str, Any]) -> Any:
        """Yield inner calls and return (observation, info)."""
        return (yield self.env.reset(seed=self._seed, options=options))

    def on_step(self, action: str) -> Any:
        """Yield inner calls and return the five values of a step."""
        return (yield self.env.step(action))

    def on_close(self) -> Any:
        """Close the inner environment."""
        return (yield self.env.close())

    def sample_action(self) -> str:
        """Return a legal action of the inner environment. Override it if actions change."""
        return self.env.sample_action()

    @property
    def unwrapped(self) -> Env:
        return self.env.unwrapped

    @property
    def is_async(self) -> bool:
        return self.env.is_async

    @property
    def accepted_options(self) -> frozenset[str]:
        return self.option_names | self.env.accepted_options

    def run_on(self, offload: Offload | None) -> None:
        self._offload = offload  # for the tools of a wrapper; its own code runs inline
        self.env.run_on(offload)

    def spawn(self) -> Env:
        args, kwargs = self._made_with
        inner = self.env.spawn()
        if args:
            return type(self)(inner, *args[1:], **kwargs)
        return type(self)(**{**kwargs, "env": inner})

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{self.env!r}>"

    def __getattr__(self, name: str) -> Any:
        # Unpickling and copying look up attributes before `env` is set.
        if name.startswith("__") or name == "env":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.env, name)

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        result = function(*args)
        # A method without an inner call is not a generator.
        return drive(result) if type(result) is GeneratorType else result


for _attribute in ("execution", "deterministic", "action_example", "spec"):
    # Env declares these, so Python would never call __getattr__ for them.
    setattr(Wrapper, _attribute, property(attrgetter(f"env.{_attribute}")))
