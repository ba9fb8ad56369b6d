"""Every world: experts solve it, cheaters earn nothing, and 64 episodes run at once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from cheaters import CHEATERS, Cheater

from gem_core import run_batch, tasks_for
from gem_core.env.registry import environments
from gem_core.policies.players import ExpertPlayer, RandomPlayer
from gem_core.types import Episode

WORLDS = [
    id
    for id, spec in environments.all().items()
    if str(spec.entry_point).startswith("gem_envs.worlds.")
]
PAID_CHEATERS: dict[tuple[str, str], str] = {}
"""(id, cheater): why this cheater may earn more than 0.2 there."""
FLOOR = 0.35
"""The highest mean reward of the random player."""
HIGH_FLOORS: dict[str, str] = {}
"""Ids on which the random player earns more, with the reason."""


def mean_reward(episodes: Sequence[Episode]) -> float:
    assert not [episode.failure for episode in episodes if episode.failed]
    return sum(episode.total_reward for episode in episodes) / len(episodes)


@pytest.mark.parametrize("id", WORLDS)
def test_expert_solves_twenty_seeds(id: str) -> None:
    episodes = run_batch(tasks_for(id, seeds=range(20)), ExpertPlayer())
    unsolved = [
        (episode.seed, episode.total_reward, episode.failure)
        for episode in episodes
        if episode.failed or abs(episode.total_reward - 1.0) > 1e-9 or not episode.success
    ]
    assert unsolved == []


@pytest.mark.parametrize("id", WORLDS)
def test_random_player_plays_64_episodes_at_once_and_earns_little(id: str) -> None:
    episodes = run_batch(tasks_for(id, seeds=range(64)), RandomPlayer(), concurrency=64)
    assert mean_reward(episodes) < (1.0 if id in HIGH_FLOORS else FLOOR)


@pytest.mark.parametrize("kind", CHEATERS)
@pytest.mark.parametrize("id", WORLDS)
def test_cheater_earns_at_most_a_fifth(id: str, kind: str) -> None:
    episodes = run_batch(tasks_for(id, seeds=range(3)), Cheater(kind))
    assert mean_reward(episodes) <= 0.2 or (id, kind) in PAID_CHEATERS
