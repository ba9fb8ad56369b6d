"""Advantage estimators: episodes in, one number per turn out. Every token of turn t gets A_t.

r_t is the reward of turn t, G_t = r_t + γ·G_{t+1}, and R = G_0. Statistics cover valid turns only:
a masked turn passes its reward to earlier turns but is not in the loss, and a failed episode is
excluded.

| name          | A_t                                               | statistics over             |
|---------------|---------------------------------------------------|-----------------------------|
| `reinforce`   | G_t                                               | none                        |
| `rebn`        | (G_t − mean) / (std + ε)                          | turns of the batch          |
| `grpo`        | (R − mean) / (std + ε), equal for all turns       | episodes of the group       |
| `rloo`        | R − mean of the *other* episodes of the group     | episodes of the group       |
| `reinforce++` | (G_t − mean) / (std + ε)                          | sampled tokens of the batch |
| `gae`         | δ_t + γλ·A_{t+1} with δ_t = r_t + γ·V_{t+1} − V_t | none; `whiten`: as `rebn`   |

The std is the population's, in float64, and ε = 1e-8. With S the largest |r| or |G|, a std of at
most 1e-6·S is rounding noise and gives advantages of 0; so does a single turn or episode.

Each rank computes `Moments` of its own part; `gather` collects them from all ranks, and Chan's
formula merges them. Sums of squares would lose precision. A group may span several ranks.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gem_core.arguments import fraction
from gem_core.errors import ConfigError, RegistrationError
from gem_core.plugins.catalog import Catalog
from gem_core.plugins.hookspecs import hookimpl
from gem_core.plugins.manager import on_registration
from gem_core.training.moments import Gather, Moments, merged
from gem_core.training.sequences import discounted_returns
from gem_core.types import Episode

__all__ = ["Estimator", "advantages", "check_estimator", "estimators", "register_estimator"]


@dataclass(frozen=True)
class Estimator:
    """A registered estimator and its requirements."""

    name: str
    function: Callable[..., list[list[float]]]
    """Takes episodes, `gamma`, `gather` and its own arguments; returns one number per turn."""
    needs: frozenset[str] = frozenset()
    """`groups`: several episodes per seed. `values`: a critic's value for each turn."""


estimators: Catalog[Estimator] = Catalog("advantage estimator")


def register_estimator(
    name: str,
    function: Callable[..., list[list[float]]],
    needs: Iterable[str] = (),
    *,
    replace: bool = False,
) -> None:
    """Register an estimator under a name that every adapter accepts."""
    if not callable(function):
        raise RegistrationError(
            f"the estimator {name!r} must be a function of episodes, not {type(function).__name__}"
        )
    unknown = set(needs) - {"groups", "values"}
    if unknown:
        raise RegistrationError(
            f"the estimator {name!r} needs {sorted(unknown)}; known needs are 'groups' and 'values'"
        )
    estimators.add(name, Estimator(name, function, frozenset(needs)), replace=replace)


def check_estimator(name: str, arguments: Collection[str] = ()) -> Estimator:
    """Return the estimator of that name; raise `ConfigError` unless these arguments fit it."""
    entry = estimators.get(name)
    parameters = inspect.signature(entry.function).parameters
    unknown = [k for k in arguments if k not in parameters]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        known = [k for k in parameters if k != "episodes"]
        raise ConfigError(f"the estimator {name!r} does not take {unknown}; it takes: {known}")
    missing = [
        p.name
        for p in parameters.values()
        if p.kind is p.KEYWORD_ONLY and p.default is p.empty and p.name not in arguments
    ]
    if missing:
        raise ConfigError(
            f"the estimator {name!r} needs {missing}; pass them to advantages(), "
            "or use another estimator"
        )
    return entry


def advantages(
    episodes: Sequence[Episode], estimator: str = "rebn", **kwargs: Any
) -> list[list[float]]:
    """Return one advantage per turn of each episode; 0.0 for turns that are not trained."""
    entry = check_estimator(estimator, kwargs)
    per_turn = [list(numbers) for numbers in entry.function(episodes, **kwargs)]
    lengths, turns = [len(a) for a in per_turn], [len(e.turns) for e in episodes]
    if lengths != turns:
        raise ConfigError(
            f"the estimator {estimator!r} returned {lengths} numbers for {turns} turns"
        )
    # After the estimator, which may gather from other ranks: they would wait for this one.
    for episode in episodes:
        for turn, reward in enumerate(() if episode.failed else episode.rewards):
            if not math.isfinite(reward):
                raise ConfigError(
                    f"the episode of {episode.env_id}, seed {episode.seed}, "
                    f"has the reward {reward} at turn {turn}; rewards must be finite"
                )
    for episode, numbers in zip(episodes, per_turn):
        for turn, number in enumerate(numbers):
            if not math.isfinite(number):
                raise ConfigError(
                    f"the estimator {estimator!r} returned {number} for turn {turn} "
                    f"of {episode.env_id}, seed {episode.seed}; "
                    "if its own rewards are finite, a reward on another rank is not"
                )
            if not episode.trained(turn):
                numbers[turn] = 0.0
    return per_turn


def _returns(episodes: Sequence[Episode], gamma: float) -> list[list[float]]:
    """Return G_t for every turn of every episode; zeros for a failed episode."""
    return [
        [0.0] * len(e.turns) if e.failed else discounted_returns(e.rewards, gamma) for e in episodes
    ]


def _trained_turns(episode: Episode) -> list[int]:
    return [t for t in range(len(episode.turns)) if episode.trained(t)]


def reinforce(
    episodes: Sequence[Episode], *, gamma: float = 1.0, gather: Gather | None = None
) -> list[list[float]]:
    """A_t = G_t."""
    return _returns(episodes, gamma)


def rebn(
    episodes: Sequence[Episode],
    *,
    gamma: float = 1.0,
    gather: Gather | None = None,
    per_env: bool = False,
) -> list[list[float]]:
    """Return Batch Normalization (ReBN): normalise returns over the batch's turns on all ranks.

    With `per_env`, each environment of a mixture uses its own statistics.
    """
    return _normalised(episodes, _returns(episodes, gamma), gather, per_env=per_env)


def reinforce_plus_plus(
    episodes: Sequence[Episode],
    *,
    gamma: float = 1.0,
    gather: Gather | None = None,
    per_env: bool = False,
) -> list[list[float]]:
    """REINFORCE++: normalise returns over the batch's tokens; long turns weigh more."""
    return _normalised(episodes, _returns(episodes, gamma), gather, per_env=per_env, by_token=True)


def grpo(
    episodes: Sequence[Episode],
    *,
    gamma: float = 1.0,
    gather: Gather | None = None,
    scale: bool = True,
) -> list[list[float]]:
    """A = (R − mean) / (std + ε) over the group; without `scale`, R − mean (Dr. GRPO)."""
    returns, groups = _grouped(episodes, gamma, gather)
    per_turn = []
    for episode, g in zip(episodes, returns):
        moments = groups.get(episode.group)
        if moments is None or moments.count <= 1 or not g:
            per_turn.append([0.0] * len(g))
        else:
            per_turn.append([moments.normalise(g[0]) if scale else moments.centre(g[0])] * len(g))
    return per_turn


def rloo(
    episodes: Sequence[Episode], *, gamma: float = 1.0, gather: Gather | None = None
) -> list[list[float]]:
    """A = R − the mean of the other episodes of the group = (R − mean) · n / (n − 1)."""
    returns, groups = _grouped(episodes, gamma, gather)
    per_turn = []
    for episode, g in zip(episodes, returns):
        moments = groups.get(episode.group)
        if moments is None or moments.count <= 1 or not g or not _trained_turns(episode):
            per_turn.append([0.0] * len(g))
        else:
            per_turn.append([moments.centre(g[0]) * moments.count / (moments.count - 1)] * len(g))
    return per_turn


def gae(
    episodes: Sequence[Episode],
    *,
    values: Sequence[Sequence[float]],
    gamma: float = 1.0,
    lam: float = 0.95,
    gather: Gather | None = None,
    whiten: bool = False,
    per_env: bool = False,
) -> list[list[float]]:
    """Turn-level GAE: A_t = δ_t + γλ·A_{t+1} with δ_t = r_t + γ·V_{t+1} − V_t.

    `values[e]` has the critic's value at the start of each turn of episode e and, unless the
    episode terminated, one more for its last state. The value after termination is 0.
    """
    gamma, lam = fraction("gamma", gamma), fraction("lam", lam)
    if values is None or len(values) != len(episodes):
        count = None if values is None else f"values for {len(values)} episodes"
        raise ConfigError(f"gae needs values for {len(episodes)} episodes, got {count}")
    per_turn = []
    for episode, v in zip(episodes, values):
        n = len(episode.turns)
        if episode.failed or n == 0:
            per_turn.append([0.0] * n)
            continue
        allowed = {n, n + 1} if episode.terminated else {n + 1}
        if v is None or len(v) not in allowed:
            last = "" if episode.terminated else f", the last for its end by {episode.stop.value}"
            raise ConfigError(
                f"gae needs {max(allowed)} values for an episode of {n} turns{last}, "
                f"got {None if v is None else len(v)}"
            )
        after_end = 0.0 if episode.terminated else float(v[n])
        result, following, next_value = [0.0] * n, 0.0, after_end
        rewards = episode.rewards
        for t in range(n - 1, -1, -1):
            delta = rewards[t] + gamma * next_value - float(v[t])
            following = delta + gamma * lam * following
            result[t], next_value = following, float(v[t])
        per_turn.append(result)
    return _normalised(episodes, per_turn, gather, per_env=per_env) if whiten else per_turn


def _normalised(
    episodes: Sequence[Episode],
    per_turn: list[list[float]],
    gather: Gather | None,
    *,
    per_env: bool = False,
    by_token: bool = False,
) -> list[list[float]]:
    values: dict[Hashable, list[float]] = {}
    weights: dict[Hashable, list[float]] = {}
    rewards: dict[Hashable, list[float]] = {}
    for episode, numbers in zip(episodes, per_turn):
        key = episode.played_id if per_env else ""
        turns = _trained_turns(episode)
        if not turns:
            continue
        values.setdefault(key, []).extend(numbers[t] for t in turns)
        weights.setdefault(key, []).extend(
            float(len(episode.turns[t].action_ids) or 1) if by_token else 1.0 for t in turns
        )
        rewards.setdefault(key, []).extend(episode.rewards)
    parts: dict[Hashable, Moments] = {
        key: Moments.of(values[key], weights[key], rewards[key]) for key in values
    }
    total = merged(parts, gather)
    normalised = []
    for episode, numbers in zip(episodes, per_turn):
        moments = total.get(episode.played_id if per_env else "")
        normalised.append([0.0 if moments is None else moments.normalise(x) for x in numbers])
    return normalised


def _grouped(
    episodes: Sequence[Episode], gamma: float, gather: Gather | None
) -> tuple[list[list[float]], dict[Hashable, Moments]]:
    """Return G_t of all turns, and each group's moments of R over its trained episodes."""
    returns = _returns(episodes, gamma)
    totals: dict[Hashable, list[float]] = {}
    rewards: dict[Hashable, list[float]] = {}
    for episode, g in zip(episodes, returns):
        if g and _trained_turns(episode):
            totals.setdefault(episode.group, []).append(g[0])
            rewards.setdefault(episode.group, []).extend(episode.rewards)
    parts: dict[Hashable, Moments] = {
        key: Moments.of(totals[key], seen=rewards[key]) for key in totals
    }
    return returns, merged(parts, gather)


@hookimpl
def register_estimators(register: Callable[..., Any]) -> None:
    """Register the estimators of the table above, like any plugin."""
    register("reinforce", reinforce)
    register("rebn", rebn)
    register("grpo", grpo, needs=["groups"])
    register("rloo", rloo, needs=["groups"])
    register("reinforce++", reinforce_plus_plus)
    register("gae", gae, needs=["values"])


on_registration("register_estimators", register_estimator)
