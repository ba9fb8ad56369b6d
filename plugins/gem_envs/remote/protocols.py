"""Dialect: how a server of environments words its requests and answers, seen from both sides: `AgentGym` asks, `serve` answers.

`gem` carries everything an environment says. The other five are those of AgentGym's servers, which name the same things
differently, answer with bare numbers and strings, and report errors as HTTP 200:

| dialect   | session   | task       | reset answers                   | value of a step         | end                      |
|-----------|-----------|------------|---------------------------------|-------------------------|--------------------------|
| gem       | `id`      | `seed`     | observation, info               | `reward`                | `terminated`, `truncated`|
| textcraft | `id`      | `data_idx` | observation                     | `reward`                | `done`                   |
| babyai    | `id`      | `data_idx` | observation                     | `score`                 | `done`                   |
| sciworld  | `id`      | `data_idx` | task_description, observation   | `score`, up to 100      | `done`                   |
| searchqa  | `env_idx` | `id`       | a bare string                   | `reward`                | `done`                   |
| webarena  | `env_idx` | `idx`      | observation without the task    | `reward` if terminated  | `terminated`, `truncated`|

AgentGym's trainer takes the last value it was given as the score of the episode. So the value is the return so far, and the
reward of a turn is what the turn added to it; where the value falls back to 0 between answers (`best`), what it added to the
best one so far.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from gem_core.arguments import short
from gem_core.env.base import ResetResult, StepResult
from gem_core.errors import ConfigError, EnvError

__all__ = ["DIALECTS", "Dialect", "dialect"]

_FENCED = re.compile(r"```(.*?)```", re.DOTALL)
Reply = Any
"""What stands in the JSON of an answer: an object, or a bare number or string."""


class Dialect:
    """The words of one kind of server. The methods of the first half are the client's, those of the second the server's."""

    name: ClassVar[str]
    session: ClassVar[str] = "id"
    task: ClassVar[str] = "data_idx"
    value: ClassVar[str] = "reward"
    whole: ClassVar[float] = 1.0
    """The value of a solved task; rewards are divided by it."""
    solved: ClassVar[float] = 1.0 - 1e-6
    """The return, in gem's scale, from which on a task counts as solved."""
    best: ClassVar[bool] = False
    """Whether the value is that of one answer, so that only what is better than all before adds to it."""
    observes: ClassVar[bool] = False
    """Whether the first prompt has to be asked for after the reset."""

    # The client's side.

    def create_request(self, index: int) -> Mapping[str, Any] | None:
        """The body of POST /create."""
        return None

    def created(self, reply: Reply) -> Any:
        """The session in the answer to POST /create."""
        return self.field(reply, self.session, "/create")

    def reset_request(self, index: int, options: Mapping[str, Any]) -> dict[str, Any]:
        """The body of POST /reset, without the session."""
        return {self.task: index}

    def began(self, reply: Reply) -> ResetResult:
        """What the answer to POST /reset says."""
        return self.text(self.field(reply, "observation", "/reset"), "/reset"), {}

    def took(self, reply: Reply, before: float) -> StepResult:
        """What the answer to POST /step says; `before` is the return of the turns so far."""
        observation = self.text(self.field(reply, "observation", "/step"), "/step")
        terminated, truncated = self.ended(reply)
        value = self.number(self.field(reply, self.value, "/step")) / self.whole
        total = max(value, before) if self.best else value
        info: dict[str, Any] = {"success": total >= self.solved} if terminated or truncated else {}
        return observation, total - before, terminated, truncated, info

    def ended(self, reply: Reply) -> tuple[bool, bool]:
        """(terminated, truncated)."""
        return self.flag(self.field(reply, "done", "/step")), False

    # The server's side.

    def creation(self, session: int) -> Reply:
        """The answer to POST /create."""
        return {self.session: session}

    def start(self, session: int, observation: str, info: Mapping[str, Any]) -> Reply:
        """The answer to POST /reset."""
        return {
            "observation": observation,
            "reward": 0.0,
            "score": 0.0,
            "deleted": False,
            "done": False,
        }

    def action(self, sent: Any) -> Any:
        """The action in what POST /step was sent."""
        return sent

    def turn(self, result: StepResult, total: float) -> Reply:
        """The answer to POST /step; `total` is the return, this turn included."""
        observation, reward, terminated, truncated, _ = result
        return {
            "observation": observation,
            "reward": reward * self.whole,
            "score": total * self.whole,
            "done": terminated or truncated,
        }

    def closing(self) -> Reply:
        """The answer to POST /close."""
        return True

    # Reading what came, which may be anything.

    def field(self, reply: Reply, name: str, where: str) -> Any:
        """A field of an object, or an error that says what came instead."""
        if isinstance(reply, Mapping) and name in reply:
            return reply[name]
        raise EnvError(
            f"POST {where} answered {short(reply)}; a server of the dialect {self.name!r} answers with {name!r}. "
            f"Is it another one? The dialects: {', '.join(DIALECTS)}"
        )

    def text(self, value: Any, where: str) -> str:
        """An observation, which must be a string."""
        if isinstance(value, str):
            return value
        raise EnvError(
            f"POST {where} answered with the observation {short(value)}; it must be a string"
        )

    def number(self, value: Any) -> float:
        """A reward or a score."""
        if isinstance(value, (int, float)):
            return float(value)
        raise EnvError(
            f"POST /step answered with the {self.value} {short(value)}; it must be a number"
        )

    def flag(self, value: Any) -> bool:
        """Whether an episode is over."""
        if isinstance(value, bool):
            return value
        raise EnvError(
            f"POST /step answered with {short(value)} for the end of the episode; it must be true or false"
        )


class Gem(Dialect):
    """gem's own: options and infos travel too, and every reward stays that of its turn."""

    name = "gem"
    task = "seed"

    def reset_request(self, index: int, options: Mapping[str, Any]) -> dict[str, Any]:
        return {"seed": index, "options": dict(options)}

    def began(self, reply: Reply) -> ResetResult:
        return super().began(reply)[0], dict(self.field(reply, "info", "/reset"))

    def took(self, reply: Reply, before: float) -> StepResult:
        observation = self.text(self.field(reply, "observation", "/step"), "/step")
        reward = self.number(self.field(reply, "reward", "/step"))
        return observation, reward, *self.ended(reply), dict(self.field(reply, "info", "/step"))

    def ended(self, reply: Reply) -> tuple[bool, bool]:
        terminated, truncated = (
            self.flag(self.field(reply, name, "/step")) for name in ("terminated", "truncated")
        )
        return terminated, truncated

    def start(self, session: int, observation: str, info: Mapping[str, Any]) -> Reply:
        return {"observation": observation, "info": info}

    def turn(self, result: StepResult, total: float) -> Reply:
        return dict(
            zip(("observation", "reward", "terminated", "truncated", "info"), result, strict=True)
        )


class TextCraft(Dialect):
    """The goal may also be set at creation; gem leaves it to the index."""

    name = "textcraft"
    best = True

    def create_request(self, index: int) -> Mapping[str, Any] | None:
        return {}

    def creation(self, session: int) -> Reply:
        return {"id": session, "observation": "", "done": False, "reward": 0.0}

    def start(self, session: int, observation: str, info: Mapping[str, Any]) -> Reply:
        return {"id": session, "observation": observation, "done": False, "reward": 0.0}

    def turn(self, result: StepResult, total: float) -> Reply:
        return {"observation": result[0], "reward": total, "done": result[2] or result[3]}


class BabyAI(Dialect):
    """Minigrid pays less the longer it takes, so that every score above 0 is a success."""

    name = "babyai"
    value = "score"
    solved = 1e-9


class SciWorld(Dialect):
    """ScienceWorld's score goes from 0 to 100, and to -100 where the task cannot be solved any more."""

    name = "sciworld"
    value = "score"
    whole = 100.0

    def began(self, reply: Reply) -> ResetResult:
        observation, info = super().began(reply)
        task = self.text(self.field(reply, "task_description", "/reset"), "/reset")
        return f"{task}\n{observation}", info

    def start(self, session: int, observation: str, info: Mapping[str, Any]) -> Reply:
        task, _, rest = observation.partition("\n")
        return {
            **super().start(session, rest, info),
            "task_description": task,
            "task_name": "",
            "var_num": 0,
        }


class SearchQA(Dialect):
    """A wrong answer may be tried again, and a search in between is worth 0."""

    name = "searchqa"
    session = "env_idx"
    task = "id"
    best = True

    def create_request(self, index: int) -> Mapping[str, Any] | None:
        return {"id": index}

    def created(self, reply: Reply) -> Any:
        if isinstance(reply, bool) or not isinstance(reply, int):
            raise EnvError(
                f"POST /create answered {short(reply)}; a server of the dialect 'searchqa' answers with a bare number"
            )
        return reply

    def began(self, reply: Reply) -> ResetResult:
        return self.text(reply, "/reset"), {}

    def creation(self, session: int) -> Reply:
        return session

    def start(self, session: int, observation: str, info: Mapping[str, Any]) -> Reply:
        return observation

    def turn(self, result: StepResult, total: float) -> Reply:
        return {
            "observation": result[0],
            "reward": total,
            "done": result[2] or result[3],
            "info": None,
        }


class WebArena(Dialect):
    """A reset that failed says so in its observation, and the task stands in what is asked for next."""

    name = "webarena"
    session = "env_idx"
    task = "idx"
    best = True
    observes = True

    def reset_request(self, index: int, options: Mapping[str, Any]) -> dict[str, Any]:
        return {"seed": 0, "idx": index}

    def began(self, reply: Reply) -> ResetResult:
        observation, info = super().began(reply)
        if observation == "TimeoutError":
            raise EnvError(
                "POST /reset of the WebArena server failed ('TimeoutError'): its web sites may have to be restarted"
            )
        return observation, info

    def ended(self, reply: Reply) -> tuple[bool, bool]:
        return Gem.ended(self, reply)  # type: ignore[arg-type]

    def took(self, reply: Reply, before: float) -> StepResult:
        observation, reward, terminated, truncated, info = super().took(reply, before)
        if terminated:
            return observation, reward, terminated, truncated, info
        return observation, 0.0, terminated, truncated, {"success": False} if truncated else {}

    def start(self, session: int, observation: str, info: Mapping[str, Any]) -> Reply:
        return {"observation": observation, "sites": [], "object": ""}

    def action(self, sent: Any) -> Any:
        """The model's whole answer is sent, with the action between backticks."""
        found = _FENCED.search(sent) if isinstance(sent, str) else None
        return found[1].strip() if found else sent

    def turn(self, result: StepResult, total: float) -> Reply:
        observation, _, terminated, truncated, info = result
        return {
            "observation": observation,
            "reward": total,
            "terminated": terminated,
            "truncated": truncated,
            "info": info,
        }

    def closing(self) -> Reply:
        return {"closed": "closed"}


DIALECTS: dict[str, type[Dialect]] = {
    d.name: d for d in (Gem, TextCraft, BabyAI, SciWorld, SearchQA, WebArena)
}


def dialect(name: str) -> Dialect:
    """The dialect of a name."""
    try:
        return DIALECTS[name]()
    except (KeyError, TypeError):
        raise ConfigError(
            f"dialect must be one of {', '.join(DIALECTS)}; given: {name!r}"
        ) from None
