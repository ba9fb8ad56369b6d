"""Dialects of AgentGym's servers for WebShop, BIRD, ALFWorld and LMRL-Gym.

Each server scores the last answer with 0 to 1, so the return is the best value so far.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from gem_core.arguments import short
from gem_core.env.base import ResetResult, StepResult
from gem_core.errors import EnvError
from gem_envs.remote.dialect import Dialect, Reply

__all__ = ["AlfWorld", "Maze", "SqlGym", "WebShop", "Wordle"]


class WebShop(Dialect):
    """AgentGym's WebShop server. The client fetches the first observation after the reset."""

    name = "webshop"
    session = "env_idx"
    task = "session_id"
    best = True
    observes = True

    def parse_create(self, reply: Reply) -> Any:
        if isinstance(reply, bool) or not isinstance(reply, int):
            raise EnvError(
                f"POST /create answered {short(reply)}; "
                f"expected a bare integer in the dialect {self.name!r}"
            )
        return reply

    def parse_reset(self, reply: Reply) -> ResetResult:
        if not isinstance(reply, list) or not reply:
            raise EnvError(
                f"POST /reset answered {short(reply)}; expected a list in the dialect {self.name!r}"
            )
        return str(reply[0]), {}

    def parse_step(self, reply: Reply, before: float) -> StepResult:
        state = self.field(reply, "state", "/step")
        return super().parse_step({**reply, "observation": state}, before)

    def create_reply(self, session: int) -> Reply:
        return session

    def reset_reply(self, session: int, observation: str, info: Mapping[str, Any]) -> Reply:
        return [observation, None]

    def step_reply(self, result: StepResult, total: float) -> Reply:
        done = result[2] or result[3]
        return {"state": result[0], "reward": total, "done": done, "info": None}


class SqlGym(WebShop):
    """AgentGym's server for BIRD."""

    name = "sqlgym"
    task = "item_id"


class AlfWorld(Dialect):
    """AgentGym's ALFWorld server. Its replies list the possible actions, if they are known."""

    name = "alfworld"
    task = "game"
    best = True

    def reset_request(self, index: int, options: Mapping[str, Any]) -> dict[str, Any]:
        return {"game": index, "world_type": "Text"}

    def parse_reset(self, reply: Reply) -> ResetResult:
        observation, info = super().parse_reset(reply)
        return observation, {**info, "available_actions": reply.get("available_actions", [])}

    def reset_reply(self, session: int, observation: str, info: Mapping[str, Any]) -> Reply:
        actions = info.get("available_actions", [])
        return {"id": session, "observation": observation, "available_actions": actions}

    def step_reply(self, result: StepResult, total: float) -> Reply:
        return {
            "observation": result[0],
            "reward": total,
            "available_actions": result[4].get("available_actions", []),
            "done": result[2] or result[3],
        }


class Maze(Dialect):
    """AgentGym's maze of LMRL-Gym; the address ends with /maze."""

    name = "maze"
    task = "game"
    best = True

    def reset_reply(self, session: int, observation: str, info: Mapping[str, Any]) -> Reply:
        return {"observation": observation}

    def step_reply(self, result: StepResult, total: float) -> Reply:
        return {"observation": result[0], "reward": total, "done": result[2] or result[3]}


class Wordle(Maze):
    """AgentGym's Wordle of LMRL-Gym; the address ends with /wordle.

    The first observation does not say how to play: that text is part of AgentGym's client.
    """

    name = "wordle"
    task = "seed"
    attributes: ClassVar = {"/filtered_vocab": "vocabulary"}

    def reset_reply(self, session: int, observation: str, info: Mapping[str, Any]) -> Reply:
        return {"id": session, "observation": observation}
