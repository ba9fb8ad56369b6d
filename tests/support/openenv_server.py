"""Three OpenEnv servers of the real package: /number, /line and /tools.

python openenv_server.py PORT
"""

from __future__ import annotations

import random
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastmcp import FastMCP
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from pydantic import Field


class Guess(Action):
    """One text."""

    message: str = Field(description="A number from 1 to 100")


class Hint(Observation):
    """One text."""

    said: str = ""


class Number(Environment[Guess, Hint, State]):
    """A hidden number, drawn from the seed."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, highest: int = 100, **_: Any
    ) -> Hint:
        self.number = random.Random(seed).randint(1, highest)
        return Hint(said=f"Guess a number from 1 to {highest}.")

    def step(self, action: Guess, timeout_s: float | None = None, **_: Any) -> Hint:
        if action.message == "crash":
            raise RuntimeError("out of order")
        guess = int(action.message) if action.message.isdecimal() and len(action.message) < 5 else 0
        if guess == self.number:
            return Hint(said="That is it.", done=True, reward=1.0, metadata={"success": True})
        return Hint(said="higher" if guess < self.number else "lower", reward=-0.1)

    @property
    def state(self) -> State:
        return State()


class Move(Action):
    """Two required fields."""

    direction: str = Field(description="left or right")
    steps: int = Field(description="how many", ge=1)


class Place(Observation):
    """Several fields."""

    at: int = 0
    seen: list[str] = Field(default_factory=list)


class Line(Environment[Move, Place, State]):
    """A walk along a line to position 3."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Place:
        self.at = 0
        return Place(at=0, seen=["a line"])

    def step(self, action: Move, timeout_s: float | None = None, **_: Any) -> Place:
        self.at += action.steps if action.direction == "right" else -action.steps
        return Place(at=self.at, done=self.at == 3, reward=float(self.at == 3))

    @property
    def state(self) -> State:
        return State()


class Adder(MCPEnvironment):
    """An environment with one MCP tool."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("adder")

        @server.tool
        def add(a: int, b: int) -> int:
            """Adds two numbers."""
            return a + b

        super().__init__(server)

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **_: Any
    ) -> Observation:
        return Observation(metadata={"ready": True})

    def _step_impl(self, action: Action, timeout_s: float | None = None, **_: Any) -> Observation:
        raise ValueError("call a tool")

    @property
    def state(self) -> State:
        return State()


KINDS = {
    "number": (Number, Guess, Hint),
    "line": (Line, Move, Place),
    "tools": (Adder, CallToolAction, CallToolObservation),
}

if __name__ == "__main__":
    everything = FastAPI()
    for kind, parts in KINDS.items():
        everything.mount(f"/{kind}", create_fastapi_app(*parts, max_concurrent_envs=2))
    uvicorn.run(everything, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
