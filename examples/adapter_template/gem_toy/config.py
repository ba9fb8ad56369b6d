"""Config: the environment to train on, and checks of the toy trainer's settings."""

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
    """The environment to train on: `train(GemConfig("game:Wordle-v0-easy"), ToySettings(...))`."""

    # TrainingConfig has the fields that all adapters share. Add the trainer's own fields here, with
    # defaults. The class only holds data; the other modules build rollouts and trainers.
    adapter = ADAPTER

    def task_of(self, prompt: Any, index: int = 0) -> Task:
        """Return the task of a prompt, which is `{"seed": 7}` for this trainer."""
        if not isinstance(prompt, Mapping) or "seed" not in prompt:
            raise ConfigError(
                f"a prompt must have a seed, such as {{'seed': 7}}, got {str(prompt)[:120]}"
            )
        return self.task(int(prompt["seed"]), index)


def check_settings(settings: Any, config: GemConfig) -> None:
    """Raise one `ConfigError` for all settings that would violate an invariant, with remedies."""
    require(ADAPTER)  # the installed version is supported
    reject(
        [
            (
                settings.sequence_level,
                "sequence_level=True averages the advantages of all turns; "
                "set it to False for one advantage per turn",
            ),
            few_samples(config, settings.samples, "samples"),
            long_turns(config, settings.max_response, "max_response"),
        ]
    )
