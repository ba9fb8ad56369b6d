"""Training run: a real run of verl with the tiny model, on the mock platform and server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import verl_on_cpu
from ray_cluster import shut_down_ray
from ray_start import start_ray

from gem_core.policies.tiny import tiny_model_path
from gem_verl import GemConfig, train

__all__ = ["run"]

_SETTINGS = [
    f"actor_rollout_ref.model.path={tiny_model_path()}",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.rollout.calculate_log_probs=True",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
    "data.train_batch_size=4",
    "data.max_prompt_length=256",
    "data.max_response_length=256",
    "data.seed=0",
    "critic.ppo_micro_batch_size_per_gpu=8",
    "trainer.total_epochs=100",
    "trainer.val_before_train=False",
    "trainer.save_freq=-1",
    "trainer.resume_mode=disable",
    "trainer.project_name=gem",
]
"""verl's settings of a small run: 4 seeds, each played twice, and one optimizer step per batch."""


def run(
    out: Path,
    config: dict[str, Any],
    settings: Sequence[str],
    loggers: Sequence[str] = (),
    *,
    cpus: int = 8,
) -> None:
    """Train in a new Ray cluster. Writes metrics, record, checkpoints and verl's log to `out`.

    A second run in one cluster would find verl's placement groups of the first.

    The file logger of verl is always on; `loggers` names others. `cpus`: logical ones; Ray starts a
    process for each.
    """
    gem_config = GemConfig(
        **config, record=str(out / "episodes.jsonl"), metrics=str(out / "metrics.jsonl")
    )
    named = [
        f"trainer.experiment_name={out.name}",
        f"trainer.default_local_dir={out / 'checkpoints'}",
        f"trainer.logger=[console,file{''.join(f',{name}' for name in loggers)}]",
    ]
    shut_down_ray()
    start_ray(num_cpus=cpus, num_gpus=2, logging_level="ERROR")
    on_cpu = [*verl_on_cpu.SETTINGS, *verl_on_cpu.PADDED]
    train(gem_config, [*_SETTINGS, *on_cpu, *named, *settings])
