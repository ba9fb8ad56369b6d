"""Evaluation plan: the numbered episodes to play. An interrupted run resumes by number."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from gem_core.arguments import short
from gem_core.env.ids import is_file_id, is_mixture
from gem_core.env.registry import environments, list_envs, spec
from gem_core.env.wrapper_stack import parse_wrappers
from gem_core.errors import ConfigError, UnknownNameError
from gem_core.records.redact import REDACTED
from gem_core.records.serialize import without_secrets
from gem_core.types import Sampling, Task

__all__ = ["Plan", "chosen_envs"]

_NOT_IN_OLDER_RECORDS = {"history": "append", "template_kwargs": {}}


@dataclass(frozen=True, slots=True)
class Plan:
    """Environments x seeds x samples, and every setting that affects the episodes."""

    player: str
    """The model's name, `random` or `expert`."""
    envs: tuple[str, ...]
    seeds: int
    samples: int = 1
    first_seed: int = 0
    wrappers: str = ""
    """Wrappers and tools in command-line syntax, innermost first."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of every reset."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments for making the environments."""
    max_turns: int | None = None
    """Turn limit of an episode; None leaves it to the environment."""
    sampling: Sampling = field(default_factory=Sampling)
    sampling_seed: int | None = None
    """If set, each request carries a seed derived from it, the episode number and the turn."""
    kind: str = ""
    """How the player is queried, for example `chat` or `tokens`; results depend on it."""
    request: str = ""
    """Extra fields of each request to a server, as JSON."""
    max_context: int | None = None
    """Token limit of an episode; None uses that of `evaluate(limits=...)`."""
    history: str = "append"
    """How prompts keep earlier turns; `evaluate` takes it from its renderer."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the chat template; `evaluate` takes them from its renderer."""

    def __post_init__(self) -> None:
        for name in ("seeds", "samples"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be 1 or more; got {getattr(self, name)}")
        if self.first_seed < 0:
            raise ConfigError(f"the first seed must be 0 or more; got {self.first_seed}")
        if self.max_turns is not None and self.max_turns < 1:
            raise ConfigError(
                f"max_turns must be 1 or more, or None for no limit; got {self.max_turns}"
            )
        if not self.envs:
            raise ConfigError("a plan needs at least one environment")
        if self.sampling.seed is not None:
            raise ConfigError(
                f"a plan has its own seed; use Plan(sampling_seed={self.sampling.seed}) "
                "instead of Sampling(seed=...)"
            )

    @property
    def size(self) -> int:
        """Number of episodes."""
        return len(self.envs) * self.seeds * self.samples

    def tasks(self) -> list[Task]:
        """Return one task per episode, samples of a seed together; the index is its number."""
        wrappers = tuple(parse_wrappers(self.wrappers))
        seeds = range(self.first_seed, self.first_seed + self.seeds)
        pairs = [(env, seed) for env in self.envs for seed in seeds for _ in range(self.samples)]
        return [
            Task(env, seed, dict(self.options), wrappers, dict(self.env_kwargs), index=i)
            for i, (env, seed) in enumerate(pairs)
        ]

    def sample_of(self, index: int) -> int:
        """Return the position of an episode among the samples of its seed."""
        return index % self.samples

    def as_json(self) -> dict[str, Any]:
        """Return JSON data without secrets, as stored in the header of the record."""
        plain = asdict(self)
        plain |= {
            "envs": list(self.envs),
            "sampling": {**plain["sampling"], "stop": list(self.sampling.stop)},
            "wrappers": _redacted_wrappers(self.wrappers),
            "request": _redacted_request(self.request),
        }
        files = {f"{env.rpartition('.py')[0]}.py" for env in self.envs if is_file_id(env)}
        if files:
            plain["sources"] = {file: _hash_of(file) for file in sorted(files)}
        redacted: dict[str, Any] = without_secrets(plain)
        return redacted

    def check_same(self, recorded: Mapping[str, Any], where: str) -> None:
        """Raise `ConfigError` if the record holds another plan: it would mix two evaluations."""
        # compare without secrets: a new API key is not a new evaluation
        own, recorded = self.as_json(), without_secrets({**_NOT_IN_OLDER_RECORDS, **recorded})
        changed = [name for name in own if own[name] != recorded.get(name)]
        if changed:
            changes = "; ".join(
                f"{name} was {short(recorded.get(name), 60)} and is now {short(own[name], 60)}"
                for name in changed
            )
            raise ConfigError(
                f"{where} holds another evaluation: {changes}. "
                "Choose another --out, or start over with --overwrite"
            )


def chosen_envs(patterns: Iterable[str]) -> tuple[str, ...]:
    """Resolve ids, parts of ids, patterns and mixtures to unique ids, in order."""
    chosen: dict[str, None] = {}
    for pattern in patterns:
        known = environments.all()
        ids = [pattern] if pattern in known else list_envs(pattern)
        if not ids and is_mixture(pattern) and ":" in pattern:
            ids = [spec(pattern).id]
        if not ids:
            raise UnknownNameError(
                "environment", pattern, tuple(known), "`gem-rl envs` lists them all."
            )
        chosen |= dict.fromkeys(ids)
    return tuple(chosen)


def _hash_of(file: str) -> str:
    try:
        return sha256(Path(file).read_bytes()).hexdigest()[:12]
    except OSError as error:
        raise ConfigError(f"cannot read the environment's file {file}: {error}") from error


def _redacted_wrappers(text: str) -> str:
    """Redact secrets in wrapper arguments; return the text unchanged if it has none."""
    try:
        calls = parse_wrappers(text)
    except ConfigError:  # `tasks` raises it
        return text
    redacted = without_secrets(calls)
    if REDACTED not in repr(redacted):
        return text
    return ", ".join(
        f"{name}({', '.join(f'{key}={value!r}' for key, value in kwargs.items())})"
        for name, kwargs in redacted
    )


def _redacted_request(text: str) -> str:
    try:
        fields = json.loads(text)
    except ValueError:
        return text
    redacted = without_secrets(fields)
    return json.dumps(redacted, default=repr) if REDACTED in repr(redacted) else text
