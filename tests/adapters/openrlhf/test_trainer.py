"""gem's advantages in OpenRLHF's batch, and the check that the batch is what was played."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from worlds import ECHO, MOODY

from gem_core.errors import BatchMismatchError, ConfigError
from gem_core.training.advantage import advantages
from gem_core.training.metrics_file import read_metrics
from gem_openrlhf import GemConfig, write_dataset
from gem_openrlhf.trainer import GemTraining, check_batch, put_advantages

Play = Callable[..., list[dict[str, Any]]]


def batch(responses: list[dict[str, Any]]) -> Any:
    """Return one padded batch, as OpenRLHF concatenates samples."""
    generator = SamplesGenerator.__new__(SamplesGenerator)
    return Experience.concat_experiences(
        [generator._process_response_into_experience(r, max_len=512) for r in responses], 0
    )


@pytest.mark.parametrize("estimator", ["rebn", "reinforce", "reinforce++", "grpo", "rloo"])
def test_every_token_gets_the_advantage_of_its_turn(play: Play, estimator: str) -> None:
    responses = play(
        GemConfig(ECHO, max_turn_tokens=6, advantage=estimator, gamma=0.9),
        seeds=[0, 1, 2],
        samples=2,
    )
    episodes = [response["label"].episode for response in responses]
    first, second = batch(responses[:4]), batch(responses[4:])
    metrics, advantage_abs = put_advantages([first, second])
    per_turn = advantages(episodes, estimator, gamma=0.9)
    sizes = [abs(number) for numbers in per_turn for number in numbers]
    assert advantage_abs == pytest.approx(sum(sizes) / len(sizes))
    assert metrics.tokens == first.action_mask.sum() + second.action_mask.sum()
    for response, tokens, numbers in zip(
        responses, [*first.advantages, *second.advantages], per_turn
    ):
        for (start, end), number in zip(response["action_ranges"], numbers):
            assert tokens[start - 1 : end - 1].tolist() == pytest.approx(
                [number] * (end - start), abs=1e-6
            )
    for experience in (first, second):
        assert float((experience.advantages * (1 - experience.action_mask)).abs().sum()) == 0.0
        assert all(isinstance(label, str) for label in experience.labels), "labels are restored"
        assert experience.kl is None


def test_plugins_get_the_whole_batch_once(play: Play, batch_ends: list[Any]) -> None:
    responses = play(GemConfig(ECHO, max_turn_tokens=6), seeds=[0, 1, 2])
    put_advantages([batch(responses[:2]), batch(responses[2:])])
    assert [[e.seed for e in episodes] for episodes in batch_ends] == [[0, 1, 2]]


def test_metrics_exclude_failed_episodes(play: Play) -> None:
    responses = play(GemConfig(MOODY, max_turn_tokens=6), seeds=[0, 1, 2, 3])
    experience = batch(responses)
    metrics, _ = put_advantages([experience])
    assert metrics.means()["failed"] == 0.5
    finished = [
        response["reward"] for response in responses if not response["label"].episode.failed
    ]
    assert metrics.means()["return"] == pytest.approx(sum(finished) / 2)
    assert torch.isfinite(experience.advantages).all()
    assert [bool(mask.any()) for mask in experience.action_mask] == [True, False, True, False]


def test_samples_of_another_agent_are_rejected(play: Play) -> None:
    experience = batch(play(GemConfig(ECHO, max_turn_tokens=6), seeds=[0]))
    experience.labels = ["42"]
    with pytest.raises(ConfigError, match="agent_func_path"):
        put_advantages([experience])


def test_datasets_with_different_estimators_are_rejected(play: Play) -> None:
    config = GemConfig(ECHO, max_turn_tokens=6)
    responses = play(config, seeds=[0]) + play(replace(config, gamma=0.5), seeds=[1])
    with pytest.raises(ConfigError, match="must have the same advantage estimator"):
        put_advantages([batch(responses)])


@pytest.mark.parametrize("change", ["ids", "mask", "cut"])
def test_check_batch_rejects_changed_ids_or_mask(play: Play, change: str) -> None:
    experience = batch(play(GemConfig(ECHO, max_turn_tokens=6), seeds=[2, 5]))
    check_batch([experience])
    if change == "ids":
        experience.sequences = experience.sequences.roll(1, dims=1)
    elif change == "mask":
        experience.action_mask = experience.action_mask.roll(1, dims=1)
    else:
        experience = replace(
            experience,
            sequences=experience.sequences[:, :20],
            action_mask=experience.action_mask[:, :19],
        )
    with pytest.raises(BatchMismatchError, match="in OpenRLHF's batch"):
        check_batch([experience])
    with pytest.raises(BatchMismatchError, match="in OpenRLHF's batch"):
        put_advantages([experience])


def test_metrics_file_has_one_line_per_update(play: Play, tmp_path: Path) -> None:
    """The trainer reads the path of the file from the labels of the dataset."""
    config = GemConfig(ECHO, seeds=2, max_turn_tokens=6, metrics=str(tmp_path / "metrics.jsonl"))
    trainer = GemTraining.__new__(GemTraining)
    trainer.args = SimpleNamespace(
        data=SimpleNamespace(
            prompt_dataset=str(write_dataset(config, tmp_path / "data.jsonl")), label_key="label"
        ),
        ckpt=SimpleNamespace(load_enable=False, path=str(tmp_path), save_steps=10),
        logger=SimpleNamespace(logging_steps=10),
    )
    trainer.init_checkpoint_states()
    last_batch = put_advantages([batch(play(config, seeds=[0, 1]))])
    trainer.experience_maker = SimpleNamespace(last_batch=last_batch)
    trainer.save_logs_and_checkpoints(
        1, {"policy_loss": 0.5, "actor_grad_norm": 2.0, "generated_samples": ["text", 0.0]}
    )
    (line,) = read_metrics(config.metrics or "")
    assert (line["step"], line["loss"], line["grad_norm"], line["episodes"]) == (0, 0.5, 2.0, 2)
    episodes, advantage_abs = last_batch
    assert line["tokens"] == episodes.tokens
    assert line["advantage_abs"] == pytest.approx(advantage_abs)
    assert line["return"] == pytest.approx(episodes.means()["return"])
    assert line["seconds"] > 0
