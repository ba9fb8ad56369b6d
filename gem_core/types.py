"""Data types: the frozen, picklable data that flows from an environment to a trainer.

An `Episode` is a tuple of `Turn`s. A turn stores only the ids *added* since the previous turn,
so memory grows linearly; `Episode.prompt_ids(t)` rebuilds the complete prompt of turn t.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Literal

from gem_core.errors import ConfigError

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
"""The author of a message. `continuation` is appended to a completion without any template."""


class TurnStatus(str, Enum):
    """Whether a turn can be trained on."""

    VALID = "valid"
    """Trained, and counted in every statistic."""
    MASKED = "masked"
    """Neither trained nor counted, but its reward counts in the returns of earlier turns."""
    FAILED = "failed"
    """The reward is unknown, and with it every earlier return. Ends the episode."""


class FinishReason(str, Enum):
    """Why a generation ended."""

    STOP = "stop"
    """The model ended its turn (the stop token is among the sampled ids)."""
    LENGTH = "length"
    """The generation reached its token limit."""
    EMPTY = "empty"
    """Nothing was sampled."""
    REFUSED = "refused"
    """The model refused to answer, or the server's content filter removed the answer."""


class StopReason(str, Enum):
    """Why an episode ended. The rewards are unknown if `failed` is true."""

    TERMINATED = "terminated"
    """The environment reached a terminal state."""
    TRUNCATED = "truncated"
    """The environment truncated the episode, for example at its own turn limit."""
    TURN_LIMIT = "turn_limit"
    """The episode reached the engine's turn or horizon limit."""
    TOKEN_LIMIT = "token_limit"
    """The sampled tokens of the episode reached the engine's limit."""
    CONTEXT_FULL = "context_full"
    """The next prompt leaves no room for a sampled token."""
    GENERATION_CUT = "generation_cut"
    """A generation reached its token limit, and the limits are set to end the episode then."""
    ENV_ERROR = "env_error"
    """The environment raised an exception."""
    ENV_DEADLINE = "env_deadline"
    """A reset or step took too long."""
    ENV_INVALID = "env_invalid"
    """The environment violated the `Env` contract."""
    POLICY_ERROR = "policy_error"
    """The policy raised an exception or violated its contract."""
    POLICY_DEADLINE = "policy_deadline"
    """A generation took too long."""
    EPISODE_DEADLINE = "episode_deadline"
    """The episode took too long."""
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
    """One message of a conversation."""

    role: Role
    """`system`, `user`, `assistant`, `tool` or `continuation`."""
    content: str
    """The text."""

    def as_dict(self) -> dict[str, str]:
        """Return the dict that chat templates and chat servers take."""
        return {"role": self.role, "content": self.content}


@dataclass(frozen=True, slots=True)
class Context:
    """The complete next prompt, set in `info["context"]` by a wrapper that rewrites the history."""

    messages: tuple[Message, ...]
    """The messages of the prompt, in order."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling parameters of a generation."""

    temperature: float = 1.0
    """The sampling temperature; 0 is greedy."""
    top_p: float = 1.0
    """Policies warn below 1: trainers do not recompute the logprobs of the cut distribution."""
    top_k: int = 0
    """0 disables the cut; otherwise the same warning applies."""
    max_tokens: int = 512
    """The maximum number of tokens per turn."""
    seed: int | None = None
    """For engines with a seed per request; the rollout engine derives these seeds from it."""
    stop: tuple[str, ...] = ()
    """Strings that end a turn, if the engine supports them."""

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ConfigError(f"temperature must be 0 (greedy) or more, got {self.temperature!r}")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p must be above 0 and at most 1, got {self.top_p!r}")
        if self.top_k < 0:
            raise ConfigError(f"top_k must be 0 (no cut) or more, got {self.top_k!r}")
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens must be 1 or more, got {self.max_tokens!r}")


@dataclass(frozen=True, slots=True)
class Generation:
    """The result of a policy for one prompt."""

    ids: tuple[int, ...]
    """The sampled ids, including a sampled stop token."""
    logprobs: tuple[float, ...] | None = None
    """One per id, of the distribution sampled from; None if the engine does not return them."""
    finish: FinishReason = FinishReason.STOP
    """Why the generation ended."""
    text: str | None = None
    """Only for policies without ids; otherwise the ids are decoded."""
    versions: tuple[int, int] | None = None
    """The first and last weight version the ids were sampled from, if the engine reports them."""
    tokens: int | None = None
    """The number of sampled tokens, if a server without ids reports it."""
    reasoning: str = ""
    """The thinking, if a server returns it apart from the text."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One prompt, the completion of the model, and the reward for it."""

    messages: tuple[Message, ...]
    """The messages since the last action; the complete conversation if `restarted`."""
    action: str
    """The text of the sampled ids, as passed to the environment. It begins with `<think>` if the
    generation prompt opens the thinking."""
    reward: float | None
    """None only if the turn failed."""
    added_ids: tuple[int, ...] = ()
    """The prompt ids since the last action; the complete prompt if `restarted`."""
    restarted: bool = False
    """Whether the prompt does not extend the previous prompt and action."""
    action_ids: tuple[int, ...] = ()
    """The sampled ids."""
    logprobs: tuple[float, ...] | None = None
    """One per sampled id, if the engine returned them."""
    status: TurnStatus = TurnStatus.VALID
    """Whether the turn is trained."""
    finish: FinishReason = FinishReason.STOP
    """Why the generation ended."""
    sampling: Sampling | None = None
    """The sampling parameters of the generation."""
    versions: tuple[int, int] | None = None
    """The first and last weight version the ids were sampled from, if known."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """The `info` that `step` returned for this action."""
    tokens: int | None = None
    """The number of sampled tokens, if there are no ids and the server reports it."""
    reasoning: str = ""
    """The thinking, if a server returns it apart from the action."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as picklable data: its type, message, place and traceback."""

    kind: str
    """The class of the exception."""
    message: str
    """The message of the exception."""
    where: str
    """`reset`, `step`, `generate`, `render`, `make` or `episode`."""
    traceback: str = ""
    """The traceback as text."""

    @classmethod
    def from_error(cls, error: BaseException, where: str) -> Failure:
        """Convert an exception with its traceback, even if its `__str__` fails."""
        kind = type(error).__name__
        try:
            message = str(error)
            text = _traceback_text(error)
        except BaseException as failed:  # noqa: BLE001 - the first error is the one to report
            message = text = f"{kind} has no message: its __str__ raised {type(failed).__name__}"
        return cls(kind, message, where, text)

    def __str__(self) -> str:
        return f"{self.kind} in {self.where}: {self.message}"


def _traceback_text(error: BaseException) -> str:
    """Format a traceback without the markers below each line.

    Python parses the source to place them. CPython before 3.11.8 and 3.12.2 cannot parse in two
    threads: an import in the thread of another episode would fail with a SystemError.
    """
    whole = traceback.TracebackException.from_exception(error)
    left = [whole]
    while left:
        part = left.pop()
        part.stack = traceback.StackSummary.from_list(
            traceback.FrameSummary(f.filename, f.lineno, f.name, line=f.line) for f in part.stack
        )
        group = getattr(part, "exceptions", None) or ()
        left += [linked for linked in (part.__cause__, part.__context__, *group) if linked]
    return "".join(whole.format())


@dataclass(frozen=True, slots=True)
class Task:
    """One episode to play: the environment and its seed."""

    env_id: str
    """The id of the environment, or a mixture."""
    seed: int | None = None
    """None draws a seed; the episode records it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of `reset`."""
    wrappers: tuple[Any, ...] = ()
    """Names or (name, arguments) pairs, innermost first."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment."""
    index: int = 0
    """The position of this task in its batch; episodes carry it too, to restore the order."""
    execution: Literal["declared", "process"] = "declared"
    """`declared`: as the environment's class declares. `process`: always in a separate process."""

    def __post_init__(self) -> None:
        known = self.seed is not None
        if known and (isinstance(self.seed, bool) or not hasattr(self.seed, "__index__")):
            raise ConfigError(f"the seed of a task must be an integer or None, got {self.seed!r}")


@dataclass(frozen=True, slots=True, repr=False)
class Episode:
    """A played task: its turns, why it ended, and the last observation."""

    env_id: str
    """The id of the environment, or the mixture."""
    seed: int
    """The seed of the reset."""
    turns: tuple[Turn, ...]
    """The turns, in order."""
    stop: StopReason
    """Why the episode ended."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of `reset`."""
    wrappers: str = ""
    """The wrappers and their arguments, as one canonical string."""
    component: str = ""
    """For a mixture: the id of the environment played."""
    final_observation: str = ""
    """The observation after the last action; never part of a token sequence."""
    final_info: Mapping[str, Any] = field(default_factory=dict)
    """The `info` of the last step."""
    failure: Failure | None = None
    """The error, if the episode failed."""
    trainable: bool = True
    """False if the token ids are unknown, for example with a text-only server."""
    index: int = 0
    """The position of the task in its batch."""
    attempts: int = 1
    """1, plus the retries that were used."""
    seconds: float = 0.0
    """Wall time of the episode."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """The keyword arguments of the environment."""

    def __repr__(self) -> str:
        """Return one line: trainers print complete batches when a check fails."""
        summary = f"{len(self.turns)} turns, {self.stop.value}"
        if not self.failed:
            summary += f", return {self.total_reward:g}"
        if self.failure is not None:
            summary += f", {self.failure}"
        return f"<Episode {self.env_id} seed {self.seed}: {summary}>"

    @property
    def failed(self) -> bool:
        """Whether the rewards are unknown; the loss and all statistics exclude such an episode."""
        return self.stop.failed

    @property
    def terminated(self) -> bool:
        """Whether the environment reached a terminal state (a critic's bootstrap value is 0)."""
        return self.stop is StopReason.TERMINATED

    @property
    def group(self) -> tuple[str, str, int, str]:
        """Key of the initial state: environment and arguments, wrappers, seed and options."""
        arguments = json.dumps([self.options, self.env_kwargs], sort_keys=True, default=repr)
        return (self.env_id, self.wrappers, self.seed, arguments)

    @property
    def played_id(self) -> str:
        """The id of the environment played: the component of a mixture, otherwise `env_id`."""
        return self.component or self.env_id

    @property
    def rewards(self) -> tuple[float, ...]:
        """The known rewards, one per turn."""
        return tuple(t.reward for t in self.turns if t.reward is not None)

    @property
    def total_reward(self) -> float | None:
        """The undiscounted sum of the rewards; None if the episode failed."""
        return None if self.failed else float(sum(self.rewards))

    @property
    def success(self) -> bool | None:
        """The environment's `info["success"]`; None if it is missing or the episode failed."""
        success = None if self.failed else self.final_info.get("success")
        return None if success is None else bool(success)

    def trained(self, turn: int) -> bool:
        """Return whether the tokens of this turn are trained and its return is counted."""
        return not self.failed and self.turns[turn].status is TurnStatus.VALID

    def prompt_ids(self, turn: int) -> tuple[int, ...]:
        """Return the complete prompt of a turn, rebuilt from the ids that each turn added."""
        if not 0 <= turn < len(self.turns):
            raise IndexError(f"expected a turn below {len(self.turns)}, got {turn}")
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
        """Return the turns before the failed one as a truncated episode. Never done by default.

        Training on such prefixes rewards episodes that make an environment fail late.
        """
        if not self.failed:
            return self
        turns = tuple(t for t in self.turns if t.status is not TurnStatus.FAILED)
        return replace(self, turns=turns, stop=StopReason.TRUNCATED)
