"""Advantages where OpenRLHF computes its own: only for what gem played, and only if it arrived as it was played."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import ECHO, MOODY
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

from gem_core.errors import ConfigError
from gem_core.training.advantage import advantages
from gem_openrlhf import GemSpec
from gem_openrlhf.advantage import GemExperienceMaker, MaskLostError

Play = Callable[..., list[dict[str, Any]]]


def maker() -> GemExperienceMaker:
    args = SimpleNamespace(algo=SimpleNamespace(advantage=SimpleNamespace(estimator="reinforce")))
    return GemExperienceMaker(None, None, None, None, None, SimpleNamespace(args=args), None)


def batch(responses: list[dict[str, Any]]) -> Any:
    """One padded batch, as OpenRLHF joins samples."""
    generator = SamplesGenerator.__new__(SamplesGenerator)
    return Experience.concat_experiences([generator._process_response_into_experience(r, max_len=512) for r in responses], 0)


@pytest.mark.parametrize("estimator", ["rebn", "reinforce", "reinforce++", "grpo", "rloo"])
def test_every_token_gets_what_its_turn_earned(play: Play, estimator: str) -> None:
    responses = play(GemSpec(ECHO, max_turn_tokens=6, advantage=estimator, gamma=0.9), seeds=[0, 1, 2], samples=2)
    episodes = [r["label"].episode for r in responses]
    ours = maker()
    first, second = ours.compute_advantages_and_returns([batch(responses[:4]), batch(responses[4:])])
    credit = advantages(episodes, estimator, gamma=0.9)
    of_turns = [abs(number) for numbers in credit for number in numbers]
    assert ours.metrics is not None and ours.metrics["gem/advantage_abs"] == pytest.approx(sum(of_turns) / len(of_turns))
    rows = [*first.advantages, *second.advantages]
    for response, row, numbers in zip(responses, rows, credit):
        for (start, end), number in zip(response["action_ranges"], numbers):
            assert row[start - 1 : end - 1].tolist() == pytest.approx([number] * (end - start), abs=1e-6)
    for experience in (first, second):
        assert float((experience.advantages * (1 - experience.action_mask)).abs().sum()) == 0.0
        assert all(isinstance(label, str) for label in experience.labels), "the labels are put back"
        assert experience.kl is None


def test_metrics_leave_failed_episodes_out(play: Play) -> None:
    responses = play(GemSpec(MOODY, max_turn_tokens=6), seeds=[0, 1, 2, 3])
    ours = maker()
    (found,) = ours.compute_advantages_and_returns([batch(responses)])
    assert ours.metrics is not None and ours.metrics["gem/failed"] == 0.5
    paid = [r["reward"] for r in responses if not r["label"].episode.failed]
    assert ours.metrics["gem/return"] == pytest.approx(sum(paid) / 2)
    assert torch.isfinite(found.advantages).all()
    assert [bool(row.any()) for row in found.action_mask] == [True, False, True, False]


def test_samples_of_another_agent_are_refused(play: Play) -> None:
    found = batch(play(GemSpec(ECHO, max_turn_tokens=6), seeds=[0]))
    found.labels = ["42"]
    with pytest.raises(ConfigError, match="agent_func_path"):
        maker().compute_advantages_and_returns([found])


def test_data_sets_that_disagree_are_refused(play: Play) -> None:
    responses = play(GemSpec(ECHO, max_turn_tokens=6), seeds=[0]) + play(GemSpec(ECHO, max_turn_tokens=6, gamma=0.5), seeds=[1])
    with pytest.raises(ConfigError, match="disagree"):
        maker().compute_advantages_and_returns([batch(responses)])


@pytest.mark.parametrize("how", ["ids", "mask", "cut"])
def test_a_batch_changed_on_the_way_stops_training(play: Play, how: str) -> None:
    found = batch(play(GemSpec(ECHO, max_turn_tokens=6), seeds=[2, 5]))
    if how == "ids":
        found.sequences = found.sequences.roll(1, dims=1)
    elif how == "mask":
        found.action_mask = found.action_mask.roll(1, dims=1)
    else:
        found = replace(found, sequences=found.sequences[:, :20], action_mask=found.action_mask[:, :19])
    with pytest.raises(MaskLostError, match="not what was played"):
        maker().compute_advantages_and_returns([found])
