"""Channel: token rewards that carry turn returns to verl's own trainers, and estimators for them.

gem's trainers compute advantages from the episodes. verl's own trainers (`trainer_mode=sync`, the
legacy trainer) call a registered estimator with token rewards and a mask only. For these, the last
token of each trained turn t carries G_t - gamma * G_u, where u is the next trained turn of the
sequence. `gem_rebn`, `gem_grpo`, … rebuild G_t from these rewards: a run of ones in the mask is a
turn. Token rewards are float32, so the results have float32 precision.

The functions that need verl import it: verl loads gem's plugin, which needs this module, while it
is imported itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from gem_core.adapter_kit.batch import response_start, trained_sequences
from gem_core.adapter_kit.settings import reject
from gem_core.training.advantage import advantages, estimators
from gem_core.training.sequences import channel_rewards, discounted_returns
from gem_core.types import Episode, StopReason, Turn
from gem_verl.checks import PREFIX, algorithm_rejections
from gem_verl.config import plain

__all__ = ["estimate", "register_estimators", "token_rewards", "turns_of"]


def token_rewards(episode: Episode, end_id: int, algorithm: Any) -> list[list[float]]:
    """Return the response token rewards of each sequence, for the estimator in `algorithm`.

    An estimator that compares whole episodes reads the return of the first trained turn, which
    therefore includes the rewards of masked turns before it. verl's own estimators sum a sequence
    or discount per token, so they get undiscounted rewards.
    """
    name = str(algorithm.adv_estimator)
    verls_own = not name.startswith(PREFIX)
    gamma = 1.0 if verls_own else float(algorithm.gamma)
    needs = () if verls_own else estimators.get(name.removeprefix(PREFIX)).needs
    sequences = trained_sequences(episode, end_id, values="values" in needs)
    rewards = [channel_rewards(episode, sequence, gamma) for sequence in sequences]
    first = sequences[0]
    if first.trained and (verls_own or "groups" in needs):
        turn, _, end = next(span for span in first.spans if span[0] in first.trained)
        returns = discounted_returns(episode.rewards, gamma)
        rewards[0][end - 1] += returns[0] - returns[turn]
    return [of_tokens[response_start(s) :] for s, of_tokens in zip(sequences, rewards)]


def register_estimators() -> None:
    """Register every gem estimator that needs no critic, including those of plugins.

    An estimator `x` is registered as `gem_x`.
    """
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, register_adv_est

    for name, estimator in estimators.all().items():
        if PREFIX + name not in ADV_ESTIMATOR_REGISTRY and "values" not in estimator.needs:
            register_adv_est(PREFIX + name)(partial(estimate, name))


def estimate(
    name: str,
    token_level_rewards: Any,
    response_mask: Any,
    config: Any,
    index: Any = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (advantages, returns): one number per token, 0 on untrained tokens.

    Each sequence counts as one episode; a sequence without trained tokens does not count.
    """
    arguments, gamma = plain(config.get("gem") or {}), float(config.gamma)
    per_env = (
        arguments.get("per_env"),
        "per_env needs the environment of each sequence, which token rewards do not carry; set "
        "trainer.v1.trainer_mode=gem_sync",
    )
    reject([*algorithm_rejections(config, name), per_env])
    turns, rewards = turns_of(response_mask), token_level_rewards.double()
    trained = [i for i, spans in enumerate(turns) if spans]
    returns = [
        discounted_returns([float(rewards[i, a:b].sum()) for a, b in turns[i]], gamma)
        for i in trained
    ]
    episodes = [
        _episode(
            str(i if index is None else index[i]), turn_returns, [b - a for a, b in turns[i]], gamma
        )
        for i, turn_returns in zip(trained, returns)
    ]
    per_turn = advantages(episodes, name, gamma=gamma, **arguments)
    per_token = torch.zeros(
        (2, *response_mask.shape), dtype=torch.float32, device=response_mask.device
    )
    for i, turn_advantages, turn_returns in zip(trained, per_turn, returns):
        for (start, end), advantage, g in zip(turns[i], turn_advantages, turn_returns):
            per_token[0, i, start:end], per_token[1, i, start:end] = advantage, g
    return per_token[0], per_token[1]


def turns_of(response_mask: Any) -> list[list[tuple[int, int]]]:
    """Return (start, end) of each run of ones, by sequence. Two turns have a zero between them."""
    mask = response_mask.bool().to(torch.int8).cpu()
    edges = torch.nn.functional.pad(mask, (1, 1)).diff(dim=1)
    turns: list[list[tuple[int, int]]] = [[] for _ in range(len(mask))]
    for (i, start), (_, end) in zip(
        (edges == 1).nonzero().tolist(), (edges == -1).nonzero().tolist()
    ):
        turns[i].append((start, end))
    return turns


def _episode(group: str, returns: Sequence[float], lengths: Sequence[int], gamma: float) -> Episode:
    """Build an episode whose rewards have these returns: r_t = G_t - gamma * G_{t+1}."""
    following = [*returns[1:], 0.0]
    turns = tuple(
        Turn((), "", g - gamma * after, action_ids=(0,) * length)
        for g, after, length in zip(returns, following, lengths)
    )
    return Episode("verl", 0, turns, StopReason.TERMINATED, options={"uid": group})
