"""Wrapper: an environment around another one.

It writes `on_reset` and `on_step` as generators that `yield` the inner call:

    class Shout(Wrapper):
        def on_step(self, action):
            observation, reward, terminated, truncated, info = yield self.env.step(action.upper())
            return observation, reward, terminated, truncated, info

so that one wrapper serves sync and async environments: the outer `step` returns a result as long as every inner call does,
and an awaitable as soon as one inner call does.
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
    """An environment around another one. What it does not define is the inner one's, live."""

    def __init__(self, env: Env) -> None:
        if not isinstance(env, Env):
            raise ConfigError(f"{type(self).__name__} wraps an Env, not {type(env).__name__}")
        self.env = env

    def on_reset(self, options: Mapping[str, Any]) -> Any:
        """A generator that yields inner calls and returns (observation, info)."""
        return (yield self.env.reset(seed=self._seed, options=options))

    def on_step(self, action: str) -> Any:
        """A generator that yields inner calls and returns the five values of a step."""
        return (yield self.env.step(action))

    def on_close(self) -> Any:
        """A generator; closes the inner environment."""
        return (yield self.env.close())

    def sample_action(self) -> str:
        """A legal action of the inner environment; a wrapper that changes what an action is overrides this."""
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
        self._offload = offload  # a wrapper's own code runs inline; this is for its tools
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
        if (
            name.startswith("__") or name == "env"
        ):  # unpickling and copying ask before `env` is there
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.env, name)

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        steps = function(*args)
        return (
            drive(steps) if type(steps) is GeneratorType else steps
        )  # a wrapper without an inner call needs no yield


for _attribute in ("execution", "deterministic", "action_example", "spec"):
    # Declared on Env, so that __getattr__ would never be asked for them on a wrapper.
    setattr(Wrapper, _attribute, property(attrgetter(f"env.{_attribute}")))
