"""Dialect: the base class of the request and reply formats of environment servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from gem_core.arguments import short
from gem_core.env.base import ResetResult, StepResult
from gem_core.errors import EnvError

__all__ = ["Dialect", "Reply"]

Reply = Any
"""The JSON value of a reply: an object, or a bare number or string."""


class Dialect:
    """The format of one kind of server: first the client's methods, then the server's."""

    name: ClassVar[str]
    session: ClassVar[str] = "id"
    task: ClassVar[str] = "data_idx"
    value: ClassVar[str] = "reward"
    max_value: ClassVar[float] = 1.0
    """The value of a solved task; rewards are divided by it."""
    solved: ClassVar[float] = 1.0 - 1e-6
    """The smallest return, in gem's scale, of a solved task."""
    best: ClassVar[bool] = False
    """Whether the return is the best value so far, because each value scores one answer."""
    observes: ClassVar[bool] = False
    """Whether the client must fetch the first observation after the reset."""
    attributes: ClassVar[Mapping[str, str]] = {}
    """The further GET paths of a server, each with the attribute of the environment it returns."""

    # Client.

    def create_request(self, index: int) -> Mapping[str, Any] | None:
        """Return the body of POST /create."""
        return None

    def parse_create(self, reply: Reply) -> Any:
        """Return the session from the reply to POST /create."""
        return self.field(reply, self.session, "/create")

    def reset_request(self, index: int, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body of POST /reset, without the session."""
        return {self.task: index}

    def parse_reset(self, reply: Reply) -> ResetResult:
        """Return the reset result from the reply to POST /reset."""
        return self.text(self.field(reply, "observation", "/reset"), "/reset"), {}

    def parse_step(self, reply: Reply, before: float) -> StepResult:
        """Return the step result from the reply to POST /step; `before` is the return so far."""
        observation = self.text(self.field(reply, "observation", "/step"), "/step")
        terminated, truncated = self.parse_end(reply)
        value = self.number(self.field(reply, self.value, "/step")) / self.max_value
        total = max(value, before) if self.best else value
        info: dict[str, Any] = {"success": total >= self.solved} if terminated or truncated else {}
        return observation, total - before, terminated, truncated, info

    def parse_end(self, reply: Reply) -> tuple[bool, bool]:
        """Return (terminated, truncated) from the reply to POST /step."""
        return self.flag(self.field(reply, "done", "/step")), False

    # Server.

    def create_reply(self, session: int) -> Reply:
        """Return the reply to POST /create."""
        return {self.session: session}

    def reset_reply(self, session: int, observation: str, info: Mapping[str, Any]) -> Reply:
        """Return the reply to POST /reset."""
        return {
            "observation": observation,
            "reward": 0.0,
            "score": 0.0,
            "deleted": False,
            "done": False,
        }

    def parse_action(self, value: Any) -> Any:
        """Return the action from the `action` field of POST /step."""
        return value

    def step_reply(self, result: StepResult, total: float) -> Reply:
        """Return the reply to POST /step; `total` is the return including this turn."""
        observation, reward, terminated, truncated, _ = result
        return {
            "observation": observation,
            "reward": reward * self.max_value,
            "score": total * self.max_value,
            "done": terminated or truncated,
        }

    def close_reply(self) -> Reply:
        """Return the reply to POST /close."""
        return True

    # Checks of a server's reply.

    def field(self, reply: Reply, name: str, path: str) -> Any:
        """Return a field of a reply; raise `EnvError` if it is missing."""
        if isinstance(reply, Mapping) and name in reply:
            return reply[name]
        raise EnvError(
            f"POST {path} answered {short(reply)}; expected {name!r} in the dialect {self.name!r}. "
            "Does the server use another dialect? `gem-rl serve --help` lists them"
        )

    def text(self, value: Any, path: str) -> str:
        """Return an observation, which must be a string."""
        if isinstance(value, str):
            return value
        raise EnvError(
            f"POST {path} answered with the observation {short(value)}; it must be a string"
        )

    def number(self, value: Any) -> float:
        """Return a reward or a score, which must be a number."""
        if isinstance(value, (int, float)):
            return float(value)
        raise EnvError(
            f"POST /step answered with the {self.value} {short(value)}; it must be a number"
        )

    def flag(self, value: Any) -> bool:
        """Return whether the episode is over, which must be a boolean."""
        if isinstance(value, bool):
            return value
        raise EnvError(
            f"POST /step answered with {short(value)} for the end of the episode; "
            "it must be true or false"
        )
