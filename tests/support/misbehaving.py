"""Misbehaving environments, importable by name in processes and actors."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from gem_core.env.base import Env, ResetResult, StepResult


class Counter(Env):
    """A well-behaved environment that counts to `length`, with a reward of 1 per step."""

    execution = "inline"
    option_names = frozenset({"start"})
    action_example = "go"

    def __init__(self, length: int = 3, seconds: float = 0.0) -> None:
        self.length, self.seconds = length, seconds

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        self.count = int(options.get("start", 0))
        self.luck = self.rng.randrange(10**6)
        return f"start {self.count} luck {self.luck}", {"pid": os.getpid()}

    def on_step(self, action: str) -> StepResult:
        self.misbehave(action)
        self.count += 1
        return (
            f"{action} {self.count} {self.rng.randrange(100)}",
            1.0,
            self.count >= self.length,
            False,
            {"pid": os.getpid()},
        )

    def misbehave(self, action: str) -> None:
        if self.seconds:
            time.sleep(self.seconds)

    def sample_action(self) -> str:
        return str(self.action_rng.randrange(10))


class Blocking(Counter):
    execution = "thread"


class Isolated(Counter):
    execution = "process"


class Awaited(Counter):
    execution = "thread"

    async def on_step(self, action: str) -> StepResult:  # type: ignore[override]
        await asyncio.sleep(self.seconds)
        self.count += 1
        return (
            f"{action} {self.count} {self.rng.randrange(100)}",
            1.0,
            self.count >= self.length,
            False,
            {},
        )


class Misbehaving(Counter):
    """Fails or waits in the way its action names, or counts."""

    execution = "thread"

    def misbehave(self, action: str) -> None:
        super().misbehave(action)
        if action == "raise":
            raise ValueError("told to raise")
        if action == "hang":
            time.sleep(3600)
        if action.startswith("await "):
            while not os.path.exists(action.removeprefix("await ")):
                time.sleep(0.05)
        if action == "exit":
            os._exit(3)
        if action == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        if action == "child":
            subprocess.Popen(
                [sys.executable, "-c", "import time; time.sleep(3600)", "gem-test-grandchild"]
            )
            time.sleep(3600)

    def on_step(self, action: str) -> StepResult:
        if action == "nonsense":
            return "three", 1.0, False  # type: ignore[return-value]
        if action == "nan":
            return "nan", float("nan"), False, False, {}
        if action == "unpicklable":
            return "x", 1.0, False, False, {"lock": threading.Lock()}
        return super().on_step(action)


class MisbehavingIsolated(Misbehaving):
    execution = "process"


class OddError(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"odd {a} {b}")


class RaisesOdd(Counter):
    execution = "process"

    def misbehave(self, action: str) -> None:
        raise OddError(1, 2)


class FailsToStart(Counter):
    execution = "process"

    def __init__(self) -> None:
        raise RuntimeError("cannot be made")


class SlowToStart(Counter):
    execution = "process"

    def __init__(self) -> None:
        super().__init__()
        time.sleep(2.0)


class Chaos(Misbehaving):
    """Shows its class and a random number, from which a policy chooses the failure."""

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        super().on_reset(options)
        return f"{type(self).__name__} luck {self.luck % 40};", {}


class ChaosInline(Chaos):
    execution = "inline"


class ChaosThread(Chaos):
    execution = "thread"


class ChaosProcess(Chaos):
    execution = "process"


class ChaosAsync(Chaos):
    async def on_step(self, action: str) -> StepResult:  # type: ignore[override]
        if action == "hang":
            await asyncio.sleep(3600)
        await asyncio.sleep(0)
        return super().on_step(action)
