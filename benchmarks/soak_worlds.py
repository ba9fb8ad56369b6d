"""Environments of the soak: each counts to three, or fails in the way that the option names."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from gem_core import Env
from gem_core.errors import PolicyError
from gem_envs.remote.agentgym import AgentGym
from gem_envs.remote.server import Server

TURNS = 3
FOREVER = 3600.0
HANG = 4.0
"""Seconds of a hanging step on a thread, which nothing can end: twice the step deadline."""
SLOW_CLOSE = 3.0


class Panic(BaseException):
    """An error that is not an `Exception`, like a panic of a Rust extension."""


class Unprintable(Exception):
    """An error whose text cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError("an error without a text")


class World(Env):
    """Count to three, with a reward of 1 for each step."""

    execution = "inline"
    option_names = frozenset({"fault"})
    action_example = "go"

    def on_reset(self, options: Mapping[str, Any]) -> Any:
        self.fault = str(options.get("fault", ""))
        if self.fault == "crash in reset":
            raise RuntimeError("a fault in reset")
        return f"Say go. {self.fault}", {}

    def on_step(self, action: str) -> Any:
        if self.turn == 1 and self.fault == "nonsense":
            return self.nonsense()
        if self.turn == 1:
            self.fail()
        return self.result()

    def result(self) -> Any:
        return f"step {self.turn}", 1.0, self.turn + 1 >= TURNS, False, {}

    def nonsense(self) -> Any:
        return (
            None,
            ("three", 1.0, False),
            ("not a number", float("nan"), False, False, {}),
            (b"bytes", 1.0, False, False, {}),
            ("no info", 1.0, False, False, ["a list"]),
        )[self.seed % 5]

    def fail(self) -> None:
        if self.fault in ("crash", "slow close"):
            raise RuntimeError("a fault in a step")
        if self.fault == "error without a text":
            raise Unprintable
        if self.fault == "BaseException":
            raise (Panic("a panic"), SystemExit(0), asyncio.CancelledError())[self.seed % 3]

    def on_close(self) -> Any:
        if getattr(self, "fault", "") == "slow close":
            if self.seed % 2:
                raise RuntimeError("a fault in close")
            time.sleep(SLOW_CLOSE)


class Inline(World):
    """An environment that runs on the event loop."""


class OnThread(World):
    """An environment that blocks."""

    execution = "thread"

    def fail(self) -> None:
        if self.fault == "hang":
            time.sleep(HANG)
        super().fail()


class Async(World):
    """An environment that awaits."""

    async def on_step(self, action: str) -> Any:
        await asyncio.sleep(FOREVER if self.turn == 1 and self.fault == "hang" else 0)
        return super().on_step(action)

    async def on_close(self) -> None:
        if getattr(self, "fault", "") == "slow close":
            await asyncio.sleep(SLOW_CLOSE)


class InProcess(World):
    """An environment in its own process, which can die."""

    execution = "process"

    def fail(self) -> None:
        if self.fault == "killed worker":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "hang":
            time.sleep(FOREVER)
        super().fail()


class Served(World):
    """The environment on a server; the action `wait` takes a second."""

    execution = "thread"

    def on_step(self, action: str) -> Any:
        time.sleep(1.0 if action == "wait" else 0.0)
        return self.result()


class OnKilledServer(World):
    """An environment on its own server, which is killed during a step."""

    execution = "thread"
    closed = False

    def on_reset(self, options: Mapping[str, Any]) -> Any:
        super().on_reset(options)
        self.server = ServerProcess()
        if self.closed:  # after the deadline, while the server was starting
            self.server.kill()
        self.env = AgentGym(self.server.url, timeout=20.0)
        return self.env.reset(seed=self.seed)

    def on_step(self, action: str) -> Any:
        if self.turn == 0:
            return self.env.step(action)
        threading.Timer(0.1, self.server.kill).start()
        return self.env.step("wait")

    def on_close(self) -> None:
        self.closed = True
        if hasattr(self, "server"):
            self.server.kill()


class ServerProcess:
    """`gem-rl serve` in a process of its own, forked from one that has imported gem already."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["soak_worlds"])
        ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,))
        self._process.start()
        theirs.close()
        with ours:
            self.url: str = ours.recv()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def close(self) -> None:
        self.kill()
        self._process.close()


def _serve(pipe: Connection) -> None:
    with Server(Served) as server:
        pipe.send(server.url)
        pipe.close()
        server.wait()


class Player:
    """Say go; call a tool or fail where the observation says so."""

    def act(self, env: Env, observation: str) -> str:
        if observation.endswith("policy error"):
            raise PolicyError("a fault in the policy")
        if observation.endswith("hanging program"):
            return "<python>while True: pass</python>"
        if observation.endswith("tool"):
            return "<python>open('a', 'w').write('a'); print(6 * 7)</python>"
        return "go"
