"""Config: the environment to train on with Tinker, the settings of the run, and their check."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gem_core.adapter_kit.declaration import require
from gem_core.adapter_kit.settings import few_samples, few_seeds, reject, too_small, unknown_fields
from gem_core.errors import ConfigError
from gem_core.training.config import TrainingConfig
from gem_core.types import Task
from gem_tinker import ADAPTER

__all__ = ["GemConfig", "Loss", "TinkerSettings", "check_settings"]

Loss = Literal["importance_sampling", "ppo", "cispo"]
_CLIP = ("clip_low_threshold", "clip_high_threshold")
_LOSSES: dict[str, tuple[str, ...]] = {"importance_sampling": (), "ppo": _CLIP, "cispo": _CLIP}
_OTHER_LOSSES = {
    "gspo": "has one ratio per sequence, so turns with opposite advantages cancel",
    "dro": "also trains tokens with an advantage of 0, which are the observations",
}
_ADAM = ("beta1", "beta2", "eps", "weight_decay", "grad_clip_norm")
_AT_LEAST_ONE = ("updates", "batch_size", "samples", "substeps", "rank")


@dataclass
class GemConfig(TrainingConfig):
    """Training configuration for Tinker: the environment, limits and the advantage estimator."""

    adapter = ADAPTER

    def task_of(self, prompt: Any, index: int = 0) -> Task:
        """Return the task of a prompt, which is a seed: Tinker has no dataset."""
        if isinstance(prompt, bool) or not isinstance(prompt, int):
            raise ConfigError(f"a prompt must be a seed, such as 7, got {str(prompt)[:120]}")
        return self.task(prompt, index)


@dataclass
class TinkerSettings:
    """The settings of a run: the arguments of Tinker's clients, and those of the training loop."""

    model: str
    """The base model, by its name in Tinker."""
    out: str = "runs/tinker"
    """The folder of `checkpoint.json`. If it exists, the run continues from it."""
    updates: int = 50
    """The number of updates, including those before a checkpoint."""
    batch_size: int = 64
    """Seeds per update."""
    samples: int = 1
    """Episodes per seed."""
    loss: Loss = "importance_sampling"
    """`importance_sampling`, `ppo` or `cispo`."""
    loss_config: Mapping[str, float] = field(default_factory=dict)
    """Arguments of the loss, as in {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}."""
    learning_rate: float = 1e-4
    adam: Mapping[str, float] = field(default_factory=dict)
    """Further fields of `tinker.AdamParams`, as in {"grad_clip_norm": 1.0}."""
    substeps: int = 1
    """Optimizer steps per update, each on a part of its sequences."""
    rank: int = 32
    """The rank of the LoRA matrices."""
    one_step_off: bool = False
    """Play the next batch during an update, with the weights before it."""
    save_every: int = 20
    """Updates between two checkpoints; 0: only one after the last update."""
    eval_every: int = 0
    """Updates between two evaluations on `GemConfig.eval_seeds`; 0: none."""
    base_url: str | None = None
    """The address of the service; None takes TINKER_BASE_URL, or Tinker's own."""
    seed: int = 0
    """The seed of sampling, of the LoRA matrices and of the order of the environment's seeds."""


def check_settings(settings: TinkerSettings, config: GemConfig) -> None:
    """Raise one `ConfigError` that lists every setting gem does not support."""
    require(ADAPTER)
    loss, clip = settings.loss, settings.loss_config
    numbers = {"learning_rate": settings.learning_rate, **clip, **settings.adam}
    why = _OTHER_LOSSES.get(loss, "does not take one advantage per token")
    reject(
        [
            *(too_small(name, getattr(settings, name), 1) for name in _AT_LEAST_ONE),
            *(too_small(name, getattr(settings, name), 0) for name in ("save_every", "eval_every")),
            (loss not in _LOSSES, f"loss={loss!r} {why}; use {', '.join(map(repr, _LOSSES))}"),
            unknown_fields("loss_config", clip, _LOSSES.get(loss, _CLIP)),
            unknown_fields("adam", settings.adam, _ADAM),
            *(
                (not _is_number(value), f"{name} must be a finite number >= 0, got {value!r}")
                for name, value in numbers.items()
            ),
            (
                all(map(_is_number, clip.values()))
                and not clip.get(_CLIP[0], 0) <= 1 <= clip.get(_CLIP[1], 1),
                f"loss_config={dict(clip)}: the thresholds are bounds of the ratio, so 1 must lie "
                "between them; write 0.8 and 1.2 for an epsilon of 0.2",
            ),
            (
                config.max_turn_tokens is None,
                "a turn has no token cap; set GemConfig(max_turn_tokens=...)",
            ),
            few_seeds(len(config.train_seeds), settings.batch_size, "batch_size"),
            few_samples(config, settings.samples, "samples"),
            (
                bool(settings.eval_every) != bool(config.held_out_seeds),
                f"eval_every={settings.eval_every} does not fit {len(config.held_out_seeds)} "
                "evaluation seeds; set eval_every and GemConfig(eval_seeds=...), or neither",
            ),
            (
                _is_number(settings.eval_every)
                and _is_number(settings.updates)
                and settings.eval_every > settings.updates,
                f"eval_every={settings.eval_every} is above updates={settings.updates}, so there "
                "would be no evaluation; set a smaller number",
            ),
        ]
    )


def _is_number(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and 0 <= value < math.inf
