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

import copy
from collections.abc import Callable, Mapping
from operator import attrgetter
from types import GeneratorType
from typing import Any, cast

from gem_core.bridge import after, drive
from gem_core.env import BOOKKEEPING, Env, Offload
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

    def spawn(self, same_state: bool = False) -> Env:
        args, kwargs = self._made_with
        inner = self.env.spawn()
        if args:
            twin = type(self)(inner, *args[1:], **kwargs)
        else:
            twin = type(self)(**{**kwargs, "env": inner})
        if not same_state:
            return twin
        return cast(Env, after(twin.set_state(self.get_state()), lambda _: twin))

    def on_snapshot(self) -> Any:
        """A wrapper's own attributes are plain data unless it says otherwise; what it was given to call is no state."""
        return copy.deepcopy({k: v for k, v in vars(self).items() if k not in BOOKKEEPING and not callable(v)})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "env":  # unpickling and copying ask before `env` is there
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.env, name)

    def _outline(self) -> str:
        return f"{type(self).__name__}({self.env._outline()})"

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        steps = function(*args)
        return drive(steps) if type(steps) is GeneratorType else steps  # a wrapper without an inner call needs no yield

    def _take_snapshot(self) -> Any:
        inner = self.env._take_snapshot()
        own = None if inner is None else super()._take_snapshot()
        return None if own is None else {**own, "inner": inner}

    def _restore_snapshot(self, snapshot: Any) -> None:
        super()._restore_snapshot(snapshot)
        self.env._restore_snapshot(snapshot["inner"])


for _attribute in ("execution", "deterministic", "action_example", "spec"):
    # Declared on Env, so that __getattr__ would never be asked for them on a wrapper.
    setattr(Wrapper, _attribute, property(attrgetter(f"env.{_attribute}")))
