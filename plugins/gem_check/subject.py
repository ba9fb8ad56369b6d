"""Subject: an environment to play, by id or as an object."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from gem_core.env.action_format import format_of
from gem_core.env.base import Env
from gem_core.env.maybe_async import Waiter
from gem_core.env.registry import EnvSpec, make, spec
from gem_core.errors import ConfigError

__all__ = ["SEEDS", "STEP_LIMIT", "TURNS", "Subject", "Transcript", "env_name"]

SEEDS = (0, 1, 2)
TURNS = 12
"""The number of turns played per episode."""
STEP_LIMIT = 60.0
"""The seconds that one call of an environment may take."""

Transcript = list[Any]


class Subject:
    """An environment to play: makes fresh instances and plays them, sync or async."""

    def __init__(
        self,
        env: str | Env,
        env_kwargs: Mapping[str, Any] | None = None,
        step_limit: float = STEP_LIMIT,
    ) -> None:
        if not isinstance(env, (str, Env)):
            raise ConfigError(
                f"check_env() takes an environment or its id, got {type(env).__name__} {env!r}"
            )
        if env_kwargs and not isinstance(env, str):
            raise ConfigError("env_kwargs are the arguments of an id; got them with an object")
        if not step_limit > 0:
            raise ConfigError(f"step_limit must be above 0 seconds, got {step_limit!r}")
        self.source = env
        self.name = env_name(env)
        self.spec: EnvSpec | None = spec(env) if isinstance(env, str) else env.spec
        self.env_kwargs = dict(env_kwargs or {})
        self.step_limit = step_limit
        self.deadline = 0.0
        """When the running call of the environment exceeds the limit, in monotonic seconds."""
        self.allow(step_limit)
        self._made: list[Env] = []
        self._waiter = Waiter()

    def make(self) -> Env:
        """Make a fresh instance; `closing` closes it."""
        if isinstance(self.source, str):
            env = make(self.source, **self.env_kwargs)
        else:
            env = self.source.spawn()
        self._made.append(env)
        self.allow(self.step_limit)
        return env

    def allow(self, seconds: float) -> None:
        """Allow this many seconds for what comes next."""
        self.deadline = time.monotonic() + seconds

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Close, on exit, the instances made inside."""
        try:
            yield
        finally:
            made, self._made = self._made, []
            for env in made:
                self.result(env.close())
            self._waiter.close()

    def result(self, value: Any) -> Any:
        """Wait for an awaitable; return other values unchanged."""
        value = self._waiter.result(value)
        self.allow(self.step_limit)
        return value

    def play(
        self,
        env: Env,
        seed: int,
        actions: Sequence[str] | None = None,
        turns: int = TURNS,
        extra: int = 0,
    ) -> Transcript:
        """Play one episode, by default with random actions.

        `extra` actions are sampled and dropped at each turn.
        """
        observation, info = self.result(env.reset(seed=seed))
        transcript: Transcript = [["reset", observation, _comparable(info)]]
        for turn in range(turns if actions is None else len(actions)):
            for _ in range(extra):
                self.action(env)
            action = self.action(env) if actions is None else actions[turn]
            transcript.append([action, *self.step(env, action)])
            if env.ended:
                break
        return transcript

    def step(self, env: Env, action: str) -> list[Any]:
        """Take one action."""
        observation, reward, terminated, truncated, info = self.result(env.step(action))
        return [observation, reward, terminated, truncated, _comparable(info)]

    def action(self, env: Env) -> str:
        """Return a random action, or the formatted `action_example` without `sample_action`."""
        try:
            return env.sample_action()
        except NotImplementedError:
            form, example = format_of(env), env.action_example
            if form is None or form.parse(example) is not None:
                return example
            return form.write(example)

    @property
    def deterministic(self) -> bool:
        """The declaration of a fresh instance."""
        return self.make().deterministic


def env_name(env: str | Env) -> str:
    """Return the id of an environment, or its class name if it has no id."""
    if isinstance(env, str):
        return env
    return str(env.spec.id) if env.spec is not None else type(env.unwrapped).__name__


def _comparable(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return an info that compares and prints the same in every process."""
    return {key: repr(info[key]) for key in sorted(info)}
