"""Tests of the plugin, installed next to gem."""

from __future__ import annotations

import gem_example_plugin
import pytest

import gem_core
from gem_core.errors import ConfigError
from gem_core.training.moments import Moments


def solver(env: gem_core.Env, observation: str) -> str:
    return f"\\boxed{{{env.unwrapped.word}}}"


def test_environment_is_listed_and_solvable() -> None:
    assert gem_core.list_envs("example:*") == ["example:Anagram-v0", "example:Anagram-v0-long"]
    episode = gem_core.run_episode("example:Anagram-v0", gem_core.ScriptedPlayer(solver), seed=1)
    assert episode.success
    assert episode.rewards == (1.0,)


def test_each_miss_costs_a_third_and_reveals_a_letter() -> None:
    env = gem_core.make("example:Anagram-v0-long")
    env.reset(seed=3)
    word = env.unwrapped.word
    observation, reward, terminated, _, _ = env.step("\\boxed{wrong}")
    assert (observation, reward, terminated) == (f"No. It begins with {word[0]}.", 0.0, False)
    _, reward, terminated, _, info = env.step(f"\\boxed{{{word}}}")
    assert reward == pytest.approx(2 / 3)
    assert terminated
    assert info["success"]


def test_wrapper_subtracts_its_cost_from_every_turn() -> None:
    tasks = gem_core.tasks_for("example:Anagram-v0", [5], wrappers=["turn_cost(cost=0.25)"])
    (episode,) = gem_core.run_batch(
        tasks, gem_core.ScriptedPlayer(lambda env, observation: "\\boxed{wrong}")
    )
    assert episode.rewards == (-0.25, -0.25, -0.25)


def test_environment_rejects_a_wrong_argument() -> None:
    with pytest.raises(ConfigError, match="letters must be one of"):
        gem_core.make("example:Anagram-v0", letters=6)


def test_estimator_subtracts_the_mean_over_turns() -> None:
    loser = gem_core.ScriptedPlayer(lambda env, observation: "\\boxed{no}")
    won = gem_core.run_episode("example:Anagram-v0", gem_core.ScriptedPlayer(solver), seed=1)
    lost = gem_core.run_episode("example:Anagram-v0", loser, seed=1)
    assert gem_core.advantages([won, lost], "centred") == [[0.75], [-0.25, -0.25, -0.25]]
    two_ranks = gem_core.advantages(
        [won], "centred", gather=lambda own: [own, Moments.of([0.0, 0.0, 0.0])]
    )
    assert two_ranks == [[0.75]]


def test_event_hook_counts_every_episode() -> None:
    before = gem_example_plugin.stops["terminated"]
    gem_core.run_batch(
        gem_core.tasks_for("example:Anagram-v0", range(4)), gem_core.ScriptedPlayer(solver)
    )
    assert gem_example_plugin.stops["terminated"] == before + 4
