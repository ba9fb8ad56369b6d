"""Config: the environment to train on, and the settings of the toy trainer that do not fit it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gem_core.adapter_kit.declaration import require
from gem_core.adapter_kit.settings import few_samples, long_turns, reject
from gem_core.errors import ConfigError
from gem_core.training.config import TrainingConfig
from gem_core.types import Task
from gem_toy import ADAPTER

__all__ = ["GemConfig", "check_settings"]


@dataclass
class GemConfig(TrainingConfig):
    """An environment for the toy trainer: `train(GemConfig("game:GuessTheNumber-v0-easy"), ToySettings(...))`."""

    # TrainingConfig has all fields that the adapters share. A trainer with further needs adds fields here, always with a
    # default. The class holds data: what builds rollouts and trainers is in the other modules.
    adapter = ADAPTER

    def task_of(self, prompt: Any, index: int = 0) -> Task:
        """The task of a prompt, which for this trainer is `{"seed": 7}`."""
        if not isinstance(prompt, Mapping) or "seed" not in prompt:
            raise ConfigError(
                f"a prompt must hold a seed, as in {{'seed': 7}}; given: {str(prompt)[:120]}"
            )
        return self.task(int(prompt["seed"]), index)


def check_settings(settings: Any, config: GemConfig) -> None:
    """Raise `ConfigError` for all settings of the trainer that would break gem's promises, with the remedies."""
    require(ADAPTER)  # the installed version is one the adapter supports
    reject(
        [
            (
                settings.sequence_level,
                "sequence_level=True averages the advantages of all turns; set it to False for one advantage per turn",
            ),
            few_samples(config, settings.samples, "samples"),
            long_turns(config, settings.max_response, "max_response"),
        ]
    )
