"""The experts whose episodes the scenarios of the studies begin with."""

from __future__ import annotations

import sys

import pytest
from project import ROOT

from gem_core import Renderer, Rollout, tasks_for
from gem_core.errors import ConfigError
from gem_core.policies import load_tiny

sys.path.insert(0, str(ROOT / "benchmarks"))

import scenarios
from studies_plan import SCENARIOS


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_expert_solves_the_scenario(name: str) -> None:
    setting = SCENARIOS[name]
    renderer = Renderer(load_tiny()[1])
    sequences = scenarios.expert_sequences(setting, renderer, 24, slots=4, context=2048)
    assert len(sequences) >= 22
    assert all(len(ids) == len(mask) and 0 < sum(mask) < len(ids) for ids, mask in sequences)
    with pytest.raises(ConfigError, match="fits into 10 tokens"):
        scenarios.expert_sequences(setting, renderer, 2, slots=2, context=10)


def test_player_of_babyai_rejects_other_missions() -> None:
    with Rollout(scenarios.expert_for("babyai:x")) as rollout:
        (episode,) = rollout.run_batch(tasks_for("babyai:PickupLoc-v0", [0]))
    assert "only goes to one object" in str(episode.failure)
