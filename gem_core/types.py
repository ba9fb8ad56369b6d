"""Types: the frozen, picklable data that flows from an environment to a trainer.

An `Episode` is a tuple of `Turn`s. A turn keeps only the ids *added* since the turn before, so that an episode of n turns
costs O(n) memory; `Episode.prompt_ids(t)` rebuilds the whole prompt of turn t.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Literal

__all__ = [
    "Context",
    "Episode",
    "Failure",
    "FinishReason",
    "Generation",
    "Message",
    "Role",
    "Sampling",
    "StopReason",
    "Task",
    "Turn",
    "TurnStatus",
]

Role = Literal["system", "user", "assistant", "tool", "continuation"]
"""Who speaks. `continuation` is text put behind the model's own words without any template around it."""


class TurnStatus(str, Enum):
    """What a turn is worth to a trainer."""

    VALID = "valid"
    """Trained, and counted in every statistic."""
    MASKED = "masked"
    """Its reward is known and flows to earlier turns; its own tokens are neither trained nor counted."""
    FAILED = "failed"
    """Its reward is unknown, so every earlier return is unknown too. Ends its episode."""


class FinishReason(str, Enum):
    """Why a generation ended."""

    STOP = "stop"
    """The model ended its turn (the stop token is among the sampled ids)."""
    LENGTH = "length"
    """The token cap cut it."""
    EMPTY = "empty"
    """Nothing was sampled."""


class StopReason(str, Enum):
    """Why an episode ended. Those for which `failed` is true leave its rewards unknown."""

    TERMINATED = "terminated"
    """The environment reached an end of its own."""
    TRUNCATED = "truncated"
    """The environment cut the episode short, for example at its own turn limit."""
    TURN_LIMIT = "turn_limit"
    """The engine's turn or horizon limit."""
    TOKEN_LIMIT = "token_limit"
    """The sampled tokens of the episode reached the engine's limit."""
    CONTEXT_FULL = "context_full"
    """The next prompt leaves no room for a single sampled token."""
    GENERATION_CUT = "generation_cut"
    """A generation hit its token cap and the limits say to end there."""
    ENV_ERROR = "env_error"
    """The environment raised."""
    ENV_DEADLINE = "env_deadline"
    """A reset or step took too long."""
    ENV_INVALID = "env_invalid"
    """The environment returned something outside its contract."""
    POLICY_ERROR = "policy_error"
    """The policy raised, or returned something outside its contract."""
    POLICY_DEADLINE = "policy_deadline"
    """A generation took too long."""
    EPISODE_DEADLINE = "episode_deadline"
    """The whole episode took too long."""
    CANCELLED = "cancelled"
    """The run was stopped, for example by Ctrl-C."""

    @property
    def failed(self) -> bool:
        """Whether an episode that ended this way has unknown rewards."""
        return self in _FAILED


_FAILED = frozenset(
    {
        StopReason.ENV_ERROR,
        StopReason.ENV_DEADLINE,
        StopReason.ENV_INVALID,
        StopReason.POLICY_ERROR,
        StopReason.POLICY_DEADLINE,
        StopReason.EPISODE_DEADLINE,
        StopReason.CANCELLED,
    }
)


@dataclass(frozen=True, slots=True)
class Message:
    """One thing somebody said."""

    role: Role
    content: str

    def as_dict(self) -> dict[str, str]:
        """The form chat templates and chat servers take."""
        return {"role": self.role, "content": self.content}


@dataclass(frozen=True, slots=True)
class Context:
    """All the model is shown next, put by a wrapper into `info["context"]` when it rewrites the history."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a policy is asked to sample."""

    temperature: float = 1.0
    top_p: float = 1.0
    """Below 1 the logprobs are of the cut distribution, which a trainer does not recompute: policies warn."""
    top_k: int = 0
    """0 is no cut; the same warning applies."""
    max_tokens: int = 512
    """The cap on the tokens of one turn."""
    seed: int | None = None
    """For engines that can be seeded per request; the rollout engine draws that of each request from it."""
    stop: tuple[str, ...] = ()
    """Strings that end a turn, where the engine supports them."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What a policy returns for one prompt."""

    ids: tuple[int, ...]
    """The sampled ids, the sampled stop token included."""
    logprobs: tuple[float, ...] | None = None
    """Of the distribution sampled from, one per id; None where the engine does not give them."""
    finish: FinishReason = FinishReason.STOP
    text: str | None = None
    """Only for policies without ids; otherwise the text is decoded from the ids."""
    versions: tuple[int, int] | None = None
    """The first and last weight version the ids were sampled from, where the engine knows."""
    tokens: int | None = None
    """How many tokens were sampled, where a server without ids says so."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One prompt, what the model answered, and what the environment paid for it."""

    messages: tuple[Message, ...]
    """What was said since the model's last action; the whole conversation where `restarted`."""
    action: str
    """The text of the sampled ids, as given to the environment."""
    reward: float | None
    """None only where the turn is failed."""
    added_ids: tuple[int, ...] = ()
    """Prompt ids since the end of the last action; the whole prompt where `restarted`."""
    restarted: bool = False
    """Whether the prompt is not the last prompt and action with something behind it."""
    action_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] | None = None
    status: TurnStatus = TurnStatus.VALID
    finish: FinishReason = FinishReason.STOP
    sampling: Sampling | None = None
    versions: tuple[int, int] | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    """What the environment said about its answer to this action."""
    tokens: int | None = None
    """How many tokens were sampled, where there are no ids to count and the server says so."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as picklable data: what broke, where, and the traceback as text."""

    kind: str
    message: str
    where: str
    """`reset`, `step`, `generate`, `render`, `make` or `episode`."""
    traceback: str = ""

    def __str__(self) -> str:
        return f"{self.kind} in {self.where}: {self.message}"


@dataclass(frozen=True, slots=True)
class Task:
    """One episode to be played: which environment, from which start."""

    env_id: str
    seed: int | None = None
    """None draws one; the episode records what was drawn."""
    options: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[Any, ...] = ()
    """Names or (name, arguments) pairs, innermost first."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    index: int = 0
    """The place of this task in its batch; results carry it so that streams can be put in order."""
    execution: Literal["declared", "process"] = "declared"
    """`declared`: as the environment's class says. `process`: in a process of its own, whatever it says."""


@dataclass(frozen=True, slots=True, repr=False)
class Episode:
    """A whole play of one task: the turns, why it ended, and what came last."""

    env_id: str
    seed: int
    turns: tuple[Turn, ...]
    stop: StopReason
    options: Mapping[str, Any] = field(default_factory=dict)
    wrappers: str = ""
    """The wrappers and arguments the environment was made with, in one canonical string."""
    component: str = ""
    """For a mixture: the id of the environment that was really played."""
    final_observation: str = ""
    """What the environment said after the last action: kept here, never in a row of tokens."""
    final_info: Mapping[str, Any] = field(default_factory=dict)
    failure: Failure | None = None
    trainable: bool = True
    """False where no token ids are known, for example behind a text-only server."""
    index: int = 0
    attempts: int = 1
    seconds: float = 0.0
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """What the environment was made with beyond its id."""

    def __repr__(self) -> str:
        """Short: trainers print whole batches of these when something is wrong."""
        paid = "" if self.failed else f", return {self.total_reward:g}"
        why = f", {self.failure}" if self.failure is not None else ""
        return f"<Episode {self.env_id} seed {self.seed}: {len(self.turns)} turns, {self.stop.value}{paid}{why}>"

    @property
    def failed(self) -> bool:
        """Whether the rewards are unknown, so that nothing of it may be trained or counted."""
        return self.stop.failed

    @property
    def terminated(self) -> bool:
        """Whether the environment came to an end of its own (a critic's bootstrap value is then 0)."""
        return self.stop is StopReason.TERMINATED

    @property
    def group(self) -> tuple[str, str, int, str]:
        """Equal key, equal start: environment and its arguments, wrappers, seed and options."""
        start = json.dumps([self.options, self.env_kwargs], sort_keys=True, default=repr)
        return (self.env_id, self.wrappers, self.seed, start)

    @property
    def played_id(self) -> str:
        """The environment really played: the component of a mixture, else the id itself."""
        return self.component or self.env_id

    @property
    def rewards(self) -> tuple[float, ...]:
        """The reward of each turn whose reward is known."""
        return tuple(t.reward for t in self.turns if t.reward is not None)

    @property
    def total_reward(self) -> float | None:
        """The undiscounted sum, None where the episode is failed."""
        return None if self.failed else float(sum(self.rewards))

    @property
    def success(self) -> bool | None:
        """What the environment itself says in `info["success"]`; None where it does not say, or is failed."""
        said = None if self.failed else self.final_info.get("success")
        return None if said is None else bool(said)

    def trained(self, turn: int) -> bool:
        """Whether the tokens of this turn are trained and its return is counted."""
        return not self.failed and self.turns[turn].status is TurnStatus.VALID

    def prompt_ids(self, turn: int) -> tuple[int, ...]:
        """The whole prompt of a turn, rebuilt from what each turn added."""
        if not 0 <= turn < len(self.turns):
            raise IndexError(f"turn {turn} of an episode with {len(self.turns)} turns")
        first = turn
        while first > 0 and not self.turns[first].restarted:
            first -= 1
        ids: list[int] = []
        for t in self.turns[first:turn]:
            ids += t.added_ids
            ids += t.action_ids
        ids += self.turns[turn].added_ids
        return tuple(ids)

    def truncated_before_failed(self) -> Episode:
        """The turns before the failed one, as an episode that was truncated there: an explicit choice, never a default.

        The rewards of a failed episode are unknown, so training on its prefix as if it had been cut there biases credit
        towards plays that break environments late.
        """
        if not self.failed:
            return self
        turns = tuple(t for t in self.turns if t.status is not TurnStatus.FAILED)
        return replace(self, turns=turns, stop=StopReason.TRUNCATED)
