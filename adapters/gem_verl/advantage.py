"""Advantage: gem's estimators under verl's `register_adv_est`, as `gem_rebn`, `gem_grpo` and so on.

verl calls an estimator once per global batch, with token rewards, a mask, the prompt (`uid`) of each row and
`config.algorithm`. What the reward channel carries is enough to rebuild the turns: a stretch of ones in the mask is a turn,
and the recursion over the turns of a row gives back G_t. They go to the core's estimators as episodes of numbers.

verl is imported in the functions that need it: as it is imported, it loads gem's plugin, which needs the whole of this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from gem_core.errors import ConfigError
from gem_core.training.advantage import advantages, estimators
from gem_core.training.sequences import discounted_returns
from gem_core.types import Episode, StopReason, Turn
from gem_verl.config import PREFIX, check_algorithm

__all__ = ["Origin", "estimate", "origins", "register_estimators", "turns_of"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a row comes from, which only a trainer knows: the episode, its place in there, and the environment played."""

    session: str
    number: int
    played_id: str


_origins: list[Sequence[Origin]] = []


@contextmanager
def origins(rows: Sequence[Origin]) -> Iterator[None]:
    """Lets the estimator know where the rows of its next batch come from, in their order."""
    _origins.append(rows)
    try:
        yield
    finally:
        _origins.pop()


def register_estimators() -> None:
    """Every estimator of gem, those of plugins included, under `gem_` and its name."""
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, register_adv_est

    for name in estimators.all():
        if PREFIX + name not in ADV_ESTIMATOR_REGISTRY:
            register_adv_est(PREFIX + name)(partial(estimate, name))


def estimate(
    name: str, token_level_rewards: Any, response_mask: Any, config: Any, index: Any = None, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """(advantages, returns), one number per token, 0 where nothing is trained; rows that train nothing are not counted."""
    arguments = check_algorithm(config, name)
    gamma = float(config.gamma)
    turns = turns_of(response_mask)
    rewards = token_level_rewards.double()
    rows = [i for i, spans in enumerate(turns) if spans]
    returns = {i: discounted_returns([float(rewards[i, a:b].sum()) for a, b in turns[i]], gamma) for i in rows}
    if _origins and len(_origins[-1]) != len(turns):
        raise ConfigError(f"the trainer named {len(_origins[-1])} rows, the estimator was given {len(turns)}")
    if not _origins and arguments.get("per_env"):
        raise ConfigError(
            "per_env needs to know which environment a row comes from, which only gem's trainers tell; set "
            "trainer.v1.trainer_mode=gem_sync"
        )
    known = _origins[-1] if _origins else [Origin(str(i), 0, "") for i in range(len(turns))]
    sessions: dict[str, list[int]] = {}
    for i in sorted(rows, key=lambda i: known[i].number):
        sessions.setdefault(known[i].session, []).append(i)
    episodes = []
    for members in sessions.values():
        lengths = [b - a for i in members for a, b in turns[i]]
        group = str(members[0] if index is None else index[members[0]])
        episodes.append(_episode(group, known[members[0]].played_id, [g for i in members for g in returns[i]], lengths, gamma))
    found = torch.zeros(response_mask.shape, dtype=torch.float32, device=response_mask.device)
    seen = torch.zeros_like(found)
    for members, numbers in zip(sessions.values(), advantages(episodes, name, gamma=gamma, **arguments)):
        following = iter(numbers)
        for i in members:
            for (start, end), g in zip(turns[i], returns[i]):
                found[i, start:end], seen[i, start:end] = next(following), g
    return found, seen


def turns_of(response_mask: Any) -> list[list[tuple[int, int]]]:
    """The stretches of ones in each row: the reward channel keeps a zero between two turns."""
    mask = response_mask.bool().to(torch.int8).cpu()
    edges = torch.nn.functional.pad(mask, (1, 1)).diff(dim=1)
    found: list[list[tuple[int, int]]] = [[] for _ in range(len(mask))]
    for (row, start), (_, end) in zip((edges == 1).nonzero().tolist(), (edges == -1).nonzero().tolist()):
        found[row].append((start, end))
    return found


def _episode(group: str, played_id: str, returns: Sequence[float], lengths: Sequence[int], gamma: float) -> Episode:
    """An episode of numbers, whose rewards have these returns: r_t = G_t - gamma * G_{t+1}."""
    following = [*returns[1:], 0.0]
    turns = tuple(
        Turn((), "", g - gamma * after, action_ids=(0,) * length) for g, after, length in zip(returns, following, lengths)
    )
    return Episode("verl", 0, turns, StopReason.TERMINATED, options={"uid": group}, component=played_id)
