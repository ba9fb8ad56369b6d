r"""Advantage: episodes in, one number per turn out. Every token of turn t gets A_t.

With r_t the reward of turn t, G_t = r_t + γ·G_{t+1}, R = G_0, and statistics over *valid* turns only (masked turns pass
their reward on to earlier ones but are neither trained nor counted; a failed episode is left out whole):

| name          | A_t                                                                    | statistics over                     |
|---------------|------------------------------------------------------------------------|-------------------------------------|
| `reinforce`   | G_t                                                                    | none                                |
| `rebn`        | (G_t − mean) / (std + ε)                                               | the turns of the whole batch        |
| `grpo`        | (R − mean) / (std + ε), the same for all turns of an episode           | the episodes of a group             |
| `rloo`        | R − mean of the *other* episodes of the group                          | the episodes of a group             |
| `reinforce++` | (G_t − mean) / (std + ε), a turn counted once per sampled token        | the tokens of the whole batch       |
| `gae`         | δ_t + γλ·A_{t+1}, δ_t = r_t + γ·V_{t+1} − V_t; V after the end is 0    | none (or as `rebn`, `whiten=True`)  |

Standard deviations are those of the population, in float64, ε = 1e-8. A std of at most 1e-6·S, S the largest |r| or |G| that
went into it, is rounding noise: those advantages are 0, as they are for a single turn or a group with one episode left.

Ranks share statistics, never sums of squares: each computes `Moments` (count, mean, M2) of its own part, `gather` collects
them from all ranks, and they are merged by Chan's formula. Groups may be spread over ranks.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gem_core.errors import ConfigError, RegistrationError
from gem_core.plugins.catalog import Catalog
from gem_core.plugins.hookspecs import hookimpl
from gem_core.plugins.manager import on_registration
from gem_core.training.moments import Gather, Moments, merged
from gem_core.training.sequences import discounted_returns
from gem_core.types import Episode

__all__ = ["Estimator", "advantages", "check_estimator", "estimators", "register_estimator"]


class EstimatorFunction(Protocol):
    """What an estimator looks like: numbers for every turn of every episode, in order."""

    def __call__(
        self,
        episodes: Sequence[Episode],
        *,
        gamma: float = ...,
        gather: Gather | None = ...,
        **kwargs: Any,
    ) -> list[list[float]]: ...


@dataclass(frozen=True)
class Estimator:
    """A registered estimator and what it asks of a trainer."""

    name: str
    function: Callable[..., list[list[float]]]
    needs: frozenset[str] = frozenset()
    """`groups`: several episodes from one start. `values`: a critic's value for each turn."""


estimators: Catalog[Estimator] = Catalog("advantage estimator")


def register_estimator(
    name: str,
    function: Callable[..., list[list[float]]],
    needs: Iterable[str] = (),
    *,
    replace: bool = False,
) -> None:
    """Registers an estimator under a name that every adapter and recipe takes."""
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
    """The estimator of a name, if it takes these arguments and needs no others: asked before anything is played."""
    entry = estimators.get(name)
    takes = inspect.signature(entry.function).parameters
    unknown = [k for k in arguments if k not in takes]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in takes.values()):
        raise ConfigError(
            f"the estimator {name!r} does not take {unknown}; it takes: {[k for k in takes if k != 'episodes']}"
        )
    missing = [
        p.name
        for p in takes.values()
        if p.kind is p.KEYWORD_ONLY and p.default is p.empty and p.name not in arguments
    ]
    if missing:
        raise ConfigError(
            f"the estimator {name!r} needs {missing}: pass them to advantages(), or choose another estimator"
        )
    return entry


def advantages(
    episodes: Sequence[Episode], estimator: str = "rebn", **kwargs: Any
) -> list[list[float]]:
    """One number per turn of each episode, by the estimator of that name; 0.0 for turns that are not trained."""
    entry = check_estimator(estimator, kwargs)
    found = [list(numbers) for numbers in entry.function(episodes, **kwargs)]
    if [len(a) for a in found] != [len(e.turns) for e in episodes]:
        raise ConfigError(
            f"the estimator {estimator!r} returned {[len(a) for a in found]} numbers for {[len(e.turns) for e in episodes]} turns"
        )
    for episode, numbers in zip(episodes, found):
        for turn, number in enumerate(numbers):
            if not math.isfinite(number):
                raise ConfigError(
                    f"the estimator {estimator!r} gave {number} to turn {turn} of {episode.env_id}, seed {episode.seed}"
                )
            if not episode.trained(turn):
                numbers[turn] = 0.0
    return found


def _returns(episodes: Sequence[Episode], gamma: float) -> list[list[float]]:
    """G_t for every turn of every episode; failed episodes give zeros, which nobody may count."""
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
    """Return Batch Normalization: A_t = (G_t − mean) / (std + ε) over the valid turns of the batch on all ranks.

    With `per_env`, a mixture's environments are normalised each by its own statistics.
    """
    return _normalised(episodes, _returns(episodes, gamma), gather, per_env=per_env)


def reinforce_plus_plus(
    episodes: Sequence[Episode],
    *,
    gamma: float = 1.0,
    gather: Gather | None = None,
    per_env: bool = False,
) -> list[list[float]]:
    """REINFORCE++: returns normalised over the batch's tokens, so that a long turn weighs more in mean and std."""
    return _normalised(episodes, _returns(episodes, gamma), gather, per_env=per_env, by_token=True)


def grpo(
    episodes: Sequence[Episode],
    *,
    gamma: float = 1.0,
    gather: Gather | None = None,
    scale: bool = True,
) -> list[list[float]]:
    """A = (R − mean) / (std + ε) over the episodes of a group; without `scale`, R − mean (Dr. GRPO)."""
    returns, groups = _grouped(episodes, gamma, gather)
    found = []
    for episode, g in zip(episodes, returns):
        moments = groups.get(episode.group)
        if moments is None or moments.count <= 1 or not g:
            found.append([0.0] * len(g))
        else:
            found.append([moments.normalise(g[0]) if scale else moments.centre(g[0])] * len(g))
    return found


def rloo(
    episodes: Sequence[Episode], *, gamma: float = 1.0, gather: Gather | None = None
) -> list[list[float]]:
    """A = R − the mean of the other episodes of the group = (R − mean) · n / (n − 1)."""
    returns, groups = _grouped(episodes, gamma, gather)
    found = []
    for episode, g in zip(episodes, returns):
        moments = groups.get(episode.group)
        if moments is None or moments.count <= 1 or not g or not _trained_turns(episode):
            found.append([0.0] * len(g))
        else:
            found.append([moments.centre(g[0]) * moments.count / (moments.count - 1)] * len(g))
    return found


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

    `values[e]` holds a critic's value at the start of each turn of episode e and, where the episode was not terminated but
    cut, one more for the state it was cut in.
    """
    for name, number in (("gamma", gamma), ("lam", lam)):
        if not 0.0 <= number <= 1.0:
            raise ConfigError(f"{name} must be between 0 and 1; given: {number!r}")
    if len(values) != len(episodes):
        raise ConfigError(
            f"gae was given values for {len(values)} episodes; there are {len(episodes)}"
        )
    found = []
    for episode, v in zip(episodes, values):
        n = len(episode.turns)
        if episode.failed or n == 0:
            found.append([0.0] * n)
            continue
        wanted = {n, n + 1} if episode.terminated else {n + 1}
        if len(v) not in wanted:
            why = (
                ""
                if episode.terminated
                else f", the last for the state it was cut in ({episode.stop.value})"
            )
            raise ConfigError(
                f"gae was given {len(v)} values for an episode of {n} turns; it needs {max(wanted)}{why}"
            )
        after_end = 0.0 if episode.terminated else float(v[n])
        row, following, next_value = [0.0] * n, 0.0, after_end
        for t in range(n - 1, -1, -1):
            delta = episode.rewards[t] + gamma * next_value - float(v[t])
            following = delta + gamma * lam * following
            row[t], next_value = following, float(v[t])
        found.append(row)
    return _normalised(episodes, found, gather, per_env=per_env) if whiten else found


def _normalised(
    episodes: Sequence[Episode],
    numbers: list[list[float]],
    gather: Gather | None,
    *,
    per_env: bool = False,
    by_token: bool = False,
) -> list[list[float]]:
    values: dict[Hashable, list[float]] = {}
    weights: dict[Hashable, list[float]] = {}
    rewards: dict[Hashable, list[float]] = {}
    for episode, row in zip(episodes, numbers):
        key = episode.played_id if per_env else ""
        turns = _trained_turns(episode)
        if not turns:
            continue
        values.setdefault(key, []).extend(row[t] for t in turns)
        weights.setdefault(key, []).extend(
            float(len(episode.turns[t].action_ids) or 1) if by_token else 1.0 for t in turns
        )
        rewards.setdefault(key, []).extend(episode.rewards)
    parts: dict[Hashable, Moments] = {
        key: Moments.of(values[key], weights[key], rewards[key]) for key in values
    }
    total = merged(parts, gather)
    found = []
    for episode, row in zip(episodes, numbers):
        key = episode.played_id if per_env else ""
        known = total.get(key)
        found.append([0.0] * len(row) if known is None else [known.normalise(x) for x in row])
    return found


def _grouped(
    episodes: Sequence[Episode], gamma: float, gather: Gather | None
) -> tuple[list[list[float]], dict[Hashable, Moments]]:
    """Returns of all turns, and the moments of R over the members of each group that have something to train."""
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
    """The estimators of the table above, as an ordinary plugin."""
    register("reinforce", reinforce)
    register("rebn", rebn)
    register("grpo", grpo, needs=["groups"])
    register("rloo", rloo, needs=["groups"])
    register("reinforce++", reinforce_plus_plus)
    register("gae", gae, needs=["values"])


on_registration("register_estimators", register_estimator)
