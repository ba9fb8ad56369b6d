"""Scripted environments: sync and async environments whose behaviour a test passes as functions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any

from gem_core.env.base import Env, ResetResult, StepResult
from gem_core.env.wrapper import Wrapper

Answer = Callable[["ScriptedEnv", str], StepResult]


def counts(env: ScriptedEnv, action: str) -> StepResult:
    """Return the number of actions as observation and reward; end after the third."""
    n = env.turn + 1
    return f"O{n}", float(n), n >= 3, False, {}


class ScriptedEnv(Env):
    """An environment that calls functions for its results, and logs every call."""

    option_names = frozenset({"start"})

    def __init__(
        self,
        answer: Answer = counts,
        begin: Callable[[ScriptedEnv], ResetResult] = lambda env: ("T", {}),
        log: list[str] | None = None,
        execution: str = "inline",
    ) -> None:
        self.answer, self.begin, self.log = answer, begin, log if log is not None else []
        self.execution = execution  # type: ignore[misc]
        self.log.append("make")

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        self.log.append("reset")
        self.chance = self.rng.random()
        observation, info = self.begin(self)
        return options.get("start", observation), info

    def on_step(self, action: str) -> StepResult:
        self.log.append(f"step {action}")
        return self.answer(self, action)

    def on_close(self) -> None:
        self.log.append("close")

    def sample_action(self) -> str:
        return self.action_rng.choice(["left", "right"])


class AsyncEnv(ScriptedEnv):
    """An async `ScriptedEnv`."""

    async def on_reset(self, options: Mapping[str, Any]) -> ResetResult:  # type: ignore[override]
        await asyncio.sleep(0)
        return ScriptedEnv.on_reset(self, options)

    async def on_step(self, action: str) -> StepResult:  # type: ignore[override]
        await asyncio.sleep(0)
        return ScriptedEnv.on_step(self, action)

    async def on_close(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        ScriptedEnv.on_close(self)


class Shout(Wrapper):
    """Upper-cases actions and the first observation, marks observations, and counts steps."""

    def __init__(self, env: Env, mark: str = "!") -> None:
        super().__init__(env)
        self.mark, self.shouts = mark, 0

    def on_reset(self, options: Mapping[str, Any]) -> Any:
        observation, info = yield self.env.reset(seed=self._seed, options=options)
        self.shouts = 0
        return observation.upper(), info

    def on_step(self, action: str) -> Any:
        self.shouts += 1
        observation, reward, terminated, truncated, info = yield self.env.step(action.upper())
        return (
            observation + self.mark,
            reward,
            terminated,
            truncated,
            {**info, "shouts": self.shouts},
        )


class Hang:
    """A step that blocks its thread until the test sets `let_go`."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.entered = 0

    def __call__(self, env: ScriptedEnv, action: str) -> StepResult:
        self.entered += 1
        self.let_go.wait(30)
        return "late", 0.0, True, False, {}
