"""Plan: what an evaluation plays. Every episode has a number of its own, by which a run that was broken off is gone on with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gem_core.arguments import short
from gem_core.env.ids import is_mixture
from gem_core.env.registry import environments, list_envs, spec
from gem_core.env.wrapper_stack import parse_wrappers
from gem_core.errors import ConfigError, UnknownNameError
from gem_core.records.redact import REDACTED
from gem_core.records.serialize import without_secrets
from gem_core.types import Sampling, Task

__all__ = ["Plan", "chosen_envs"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Environments times seeds times samples, and all that decides how they are played."""

    player: str
    """Who plays: the model's name, `random` or `expert`."""
    envs: tuple[str, ...]
    seeds: int
    samples: int = 1
    first_seed: int = 0
    wrappers: str = ""
    """As on a command line, tools included, innermost first."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of every reset."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """What the environments are made with beyond their ids."""
    max_turns: int | None = None
    """The turns an episode may have; None leaves it to the environment."""
    sampling: Sampling = field(default_factory=Sampling)
    sampling_seed: int | None = None
    """Where it is given, each request carries a seed made of it, the episode's number and the turn's."""
    kind: str = ""
    """How the player is asked, for example `chat` or `tokens`: another way may give other answers."""
    request: str = ""
    """Further fields of each request to a server, as JSON."""

    def __post_init__(self) -> None:
        for name in ("seeds", "samples"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be 1 or more; given: {getattr(self, name)}")
        if self.first_seed < 0:
            raise ConfigError(f"the first seed must be 0 or more; given: {self.first_seed}")
        if self.max_turns is not None and self.max_turns < 1:
            raise ConfigError(
                f"max_turns must be 1 or more, or None for no limit; given: {self.max_turns}"
            )
        if not self.envs:
            raise ConfigError("a plan needs one environment at least")

    @property
    def size(self) -> int:
        """How many episodes it has."""
        return len(self.envs) * self.seeds * self.samples

    def tasks(self) -> list[Task]:
        """A task per episode; its index is the episode's number. Samples of one seed stand together."""
        wrappers = tuple(parse_wrappers(self.wrappers))
        seeds = range(self.first_seed, self.first_seed + self.seeds)
        starts = [(env, seed) for env in self.envs for seed in seeds for _ in range(self.samples)]
        return [
            Task(env, seed, dict(self.options), wrappers, dict(self.env_kwargs), index=i)
            for i, (env, seed) in enumerate(starts)
        ]

    def sample_of(self, index: int) -> int:
        """Which of the samples of its seed an episode is."""
        return index % self.samples

    def as_json(self) -> dict[str, Any]:
        """Data without secrets, as it stands in the header of the record, and as it is read there."""
        plain = asdict(self)
        plain |= {
            "envs": list(self.envs),
            "sampling": {**plain["sampling"], "stop": list(self.sampling.stop)},
        }
        plain |= {
            "wrappers": _wrappers_shown(self.wrappers),
            "request": _request_shown(self.request),
        }
        shown: dict[str, Any] = without_secrets(plain)
        return shown

    def check_same(self, recorded: Mapping[str, Any], where: str) -> None:
        """Refuses to go on with the record of another plan: the table would mix two evaluations."""
        own, recorded = (
            self.as_json(),
            without_secrets(recorded),
        )  # a key that is another one today is no other evaluation
        other = [name for name in own if own[name] != recorded.get(name)]
        if other:
            told = "; ".join(
                f"{name} was {short(recorded.get(name), 60)}, and is now {short(own[name], 60)}"
                for name in other
            )
            raise ConfigError(
                f"{where} holds another evaluation: {told}. Give another --out, or --overwrite to begin anew"
            )


def chosen_envs(patterns: Iterable[str]) -> tuple[str, ...]:
    """The ids that ids, parts of ids, patterns and mixtures stand for, each once, in the order given."""
    found: dict[str, None] = {}
    for pattern in patterns:
        known = environments.all()
        ids = [pattern] if pattern in known else list_envs(pattern)
        if not ids and is_mixture(pattern) and ":" in pattern:
            ids = [spec(pattern).id]
        if not ids:
            raise UnknownNameError(
                "environment", pattern, tuple(known), "`gem-rl envs` lists them all."
            )
        found |= dict.fromkeys(ids)
    return tuple(found)


def _wrappers_shown(text: str) -> str:
    """As on a command line, without what stands under the name of a secret; the text itself where there is none."""
    try:
        calls = parse_wrappers(text)
    except ConfigError:  # `tasks` says so
        return text
    kept = without_secrets(calls)
    if REDACTED not in repr(kept):
        return text
    return ", ".join(
        f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})"
        for name, given in kept
    )


def _request_shown(text: str) -> str:
    try:
        fields = json.loads(text)
    except ValueError:
        return text
    kept = without_secrets(fields)
    return json.dumps(kept, default=repr) if REDACTED in repr(kept) else text
