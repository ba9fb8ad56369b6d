"""Dialects: the request and reply formats of environment servers.

The client `AgentGym` and the server of `gem-rl serve` both use them. The dialect `gem` carries
everything an environment returns. The others are those of AgentGym's servers, which use different
names, reply with bare numbers and strings, and report errors with HTTP 200 (`world_protocols` has
more of them):

| dialect   | session   | task       | reply to reset         | value of a step        | end       |
|-----------|-----------|------------|------------------------|------------------------|-----------|
| gem       | `id`      | `seed`     | observation, info      | `reward`               | two flags |
| textcraft | `id`      | `data_idx` | observation            | `reward`               | `done`    |
| babyai    | `id`      | `data_idx` | observation            | `score`                | `done`    |
| sciworld  | `id`      | `data_idx` | task and observation   | `score`, up to 100     | `done`    |
| searchqa  | `env_idx` | `id`       | a bare string          | `reward`               | `done`    |
| webarena  | `env_idx` | `idx`      | observation, no task   | `reward` if terminated | two flags |
| tool      | `env_idx` | `id`       | a bare string          | `reward`               | `done`    |
| webshop   | `env_idx` | session_id | a list, then GET       | `reward`               | `done`    |
| sqlgym    | `env_idx` | `item_id`  | a list, then GET       | `reward`               | `done`    |
| alfworld  | `id`      | `game`     | observation, actions   | `reward`               | `done`    |
| maze      | `id`      | `game`     | observation            | `reward`               | `done`    |
| wordle    | `id`      | `seed`     | observation            | `reward`               | `done`    |

The two flags are `terminated` and `truncated`.

AgentGym's trainer uses the last value as the score of the episode. The value is therefore the
return so far, and the reward of a turn is the difference to the previous value. When the value can
fall back to 0 between answers (`best`), the reward is the improvement over the best value so far.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gem_core.arguments import short
from gem_core.env.base import ResetResult, StepResult
from gem_core.errors import ConfigError, EnvError
from gem_envs.remote.dialect import Dialect, Reply
from gem_envs.remote.world_protocols import AlfWorld, Maze, SqlGym, WebShop, Wordle
from gem_tools.calls import without_thinking

__all__ = ["DIALECTS", "Dialect", "dialect"]

_FENCED = re.compile(r"```(.*?)```", re.DOTALL)


class Gem(Dialect):
    """gem's own dialect, with options, infos and per-turn rewards."""

    name = "gem"
    task = "seed"

    def reset_request(self, index: int, options: Mapping[str, Any]) -> dict[str, Any]:
        return {"seed": index, "options": dict(options)}

    def parse_reset(self, reply: Reply) -> ResetResult:
        return super().parse_reset(reply)[0], dict(self.field(reply, "info", "/reset"))

    def parse_step(self, reply: Reply, before: float) -> StepResult:
        observation = self.text(self.field(reply, "observation", "/step"), "/step")
        reward = self.number(self.field(reply, "reward", "/step"))
        return observation, reward, *self.parse_end(reply), dict(self.field(reply, "info", "/step"))

    def parse_end(self, reply: Reply) -> tuple[bool, bool]:
        terminated, truncated = (
            self.flag(self.field(reply, name, "/step")) for name in ("terminated", "truncated")
        )
        return terminated, truncated

    def reset_reply(self, session: int, observation: str, info: Mapping[str, Any]) -> Reply:
        return {"observation": observation, "info": info}

    def step_reply(self, result: StepResult, total: float) -> Reply:
        return dict(
            zip(("observation", "reward", "terminated", "truncated", "info"), result, strict=True)
        )


class TextCraft(Dialect):
    """AgentGym's TextCraft server. It also accepts a goal at creation; gem uses the index."""

    name = "textcraft"
    best = True

    def create_request(self, index: int) -> Mapping[str, Any] | None:
        return {}

    def create_reply(self, session: int) -> Reply:
        return {"id": session, "observation": "", "done": False, "reward": 0.0}

    def reset_reply(self, session: int, observation: str, info: Mapping[str, Any]) -> Reply:
        return {"id": session, "observation": observation, "done": False, "reward": 0.0}

    def step_reply(self, result: StepResult, total: float) -> Reply:
        return {"observation": result[0], "reward": total, "done": result[2] or result[3]}


class BabyAI(Dialect):
    """AgentGym's BabyAI server. Any score above 0 is a success: the score decreases with time."""

    name = "babyai"
    value = "score"
    solved = 1e-9


class SciWorld(Dialect):
    """AgentGym's SciWorld server. The score is 0 to 100, or -100 once the task has failed."""

    name = "sciworld"
    value = "score"
    max_value = 100.0

    def parse_reset(self, reply: Reply) -> ResetResult:
        observation, info = super().parse_reset(reply)
        task = self.text(self.field(reply, "task_description", "/reset"), "/reset")
        return f"{task}\n{observation}", info

    def reset_reply(self, session: int, observation: str, info: Mapping[str, Any]) -> Reply:
        task, _, rest = observation.partition("\n")
        return {
            **super().reset_reply(session, rest, info),
            "task_description": task,
            "task_name": "",
            "var_num": 0,
        }


class SearchQA(Dialect):
    """AgentGym's SearchQA server. Wrong answers may be repeated, and a search has the value 0."""

    name = "searchqa"
    session = "env_idx"
    task = "id"
    best = True

    def create_request(self, index: int) -> Mapping[str, Any] | None:
        return {"id": index}

    def parse_create(self, reply: Reply) -> Any:
        if isinstance(reply, bool) or not isinstance(reply, int):
            raise EnvError(
                f"POST /create answered {short(reply)}; "
                "expected a bare integer in the dialect 'searchqa'"
            )
        return reply

    def parse_reset(self, reply: Reply) -> ResetResult:
        return self.text(reply, "/reset"), {}

    def create_reply(self, session: int) -> Reply:
        return session

    def reset_reply(self, session: int, observation: str, info: Mapping[str, Any]) -> Reply:
        return observation

    def step_reply(self, result: StepResult, total: float) -> Reply:
        return {
            "observation": result[0],
            "reward": total,
            "done": result[2] or result[3],
            "info": None,
        }


class Tool(SearchQA):
    """AgentGym's Weather, Movie, Academia, Sheet and TODO servers, which are alike."""

    name = "tool"

    def step_reply(self, result: StepResult, total: float) -> Reply:
        return {"observation": result[0], "reward": total, "done": result[2] or result[3]}


class WebArena(Dialect):
    """AgentGym's WebArena server.

    A failed reset has the observation "TimeoutError". The task is in the observation that the
    client fetches after the reset.
    """

    name = "webarena"
    session = "env_idx"
    task = "idx"
    best = True
    observes = True

    def reset_request(self, index: int, options: Mapping[str, Any]) -> dict[str, Any]:
        return {"seed": 0, "idx": index}

    def parse_reset(self, reply: Reply) -> ResetResult:
        observation, info = super().parse_reset(reply)
        if observation == "TimeoutError":
            raise EnvError(
                "POST /reset of the WebArena server failed ('TimeoutError'); "
                "its web sites may need to be restarted"
            )
        return observation, info

    def parse_end(self, reply: Reply) -> tuple[bool, bool]:
        terminated, truncated = Gem.parse_end(self, reply)  # type: ignore[arg-type]
        return terminated and not truncated, truncated

    def parse_step(self, reply: Reply, before: float) -> StepResult:
        observation, reward, terminated, truncated, info = super().parse_step(reply, before)
        if terminated:
            return observation, reward, terminated, truncated, info
        return observation, 0.0, terminated, truncated, {"success": False} if truncated else {}

    def reset_reply(self, session: int, observation: str, info: Mapping[str, Any]) -> Reply:
        return {"observation": observation, "sites": [], "object": ""}

    def parse_action(self, value: Any) -> Any:
        """Return the text between backticks; the client sends the model's whole message."""
        fenced = _FENCED.search(without_thinking(value)) if isinstance(value, str) else None
        return fenced[1].strip() if fenced else value

    def step_reply(self, result: StepResult, total: float) -> Reply:
        observation, _, terminated, truncated, info = result
        return {
            "observation": observation,
            "reward": total,
            "terminated": terminated or truncated,  # AgentGym's client reads only this flag
            "truncated": truncated,
            "info": info,
        }

    def close_reply(self) -> Reply:
        return {"closed": "closed"}


DIALECTS: dict[str, type[Dialect]] = {
    d.name: d
    for d in (
        *(Gem, TextCraft, BabyAI, SciWorld, SearchQA, WebArena),
        *(Tool, WebShop, SqlGym, AlfWorld, Maze, Wordle),
    )
}


def dialect(name: str) -> Dialect:
    """Return the dialect with a name."""
    try:
        return DIALECTS[name]()
    except (KeyError, TypeError):
        raise ConfigError(f"dialect must be one of {', '.join(DIALECTS)}; got {name!r}") from None
