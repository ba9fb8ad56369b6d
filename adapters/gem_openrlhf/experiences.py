"""Experiences: reads the labels, values and logprobs of OpenRLHF's batches.

A batch is a list of `Experience`s, each with several samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gem_core.adapter_kit.critic import value_positions
from gem_core.adapter_kit.response_tensors import gap_of
from gem_core.errors import ConfigError
from gem_openrlhf.config import GemConfig
from gem_openrlhf.convert import EpisodeLabel

__all__ = ["batch_config", "batch_labels", "batch_logprob_gap", "batch_values", "padded"]


def batch_labels(experiences: Sequence[Any]) -> list[EpisodeLabel]:
    """Return the labels of all samples, in order."""
    return [label for experience in experiences for label in experience.labels]


def batch_config(experiences: Sequence[Any]) -> GemConfig:
    """Return the config of a batch. All its labels must have the same settings of an update."""
    labels = batch_labels(experiences)
    for label in labels:
        if not isinstance(label, EpisodeLabel):
            raise ConfigError(
                "gem did not play a sample of this batch, so its turns are unknown; set "
                "--train.agent_func_path to gem_openrlhf's agent.py, or to a file that imports "
                f"GemAgentExecutor as AgentExecutor. Got: the label {str(label)[:80]!r}"
            )
    configs: list[GemConfig] = [label.config for label in labels]
    settings = {
        (
            config.advantage,
            config.gamma,
            str(sorted(config.estimator_kwargs.items())),
            str(config.metrics),
            config.max_failed_updates,
        )
        for config in configs
    }
    if len(settings) > 1:
        raise ConfigError(
            "all datasets must have the same advantage estimator, gamma, estimator_kwargs, "
            f"metrics and max_failed_updates; write them with one of these: {sorted(settings)}"
        )
    return configs[0]


def batch_values(
    experiences: Sequence[Any],
    played: Mapping[str, EpisodeLabel],
    last_values: Mapping[str, float],
) -> list[list[float]]:
    """Return the critic's values of each episode: one per turn, and one for the end if cut."""
    rows = {
        (label.key, label.number): row
        for experience in experiences
        for label, row in zip(experience.labels, experience.values)
    }
    values = []
    for key, label in played.items():
        positions = value_positions(label.episode, label.sequences)
        values.append([float(rows[key, number][position]) for number, position in positions])
        if label.cut_state:
            values[-1].append(last_values[key])
    return values


def batch_logprob_gap(experiences: Sequence[Any]) -> dict[str, float]:
    """Return the difference of the two logprobs; nothing if the batch has no engine's logprobs."""
    if any(experience.rollout_log_probs is None for experience in experiences):
        return {}
    names = ("rollout_log_probs", "action_log_probs", "action_mask")
    return gap_of(*(torch.cat([getattr(e, name).flatten() for e in experiences]) for name in names))


def padded(experience: Any, sequences: Sequence[Sequence[float]]) -> Any:
    """Return the numbers of all sequences as one padded tensor."""
    padded = torch.zeros(experience.action_mask.shape, dtype=torch.float32)
    for i, numbers in enumerate(sequences):
        padded[i, : len(numbers)] = torch.tensor(numbers, dtype=torch.float32)
    return padded
