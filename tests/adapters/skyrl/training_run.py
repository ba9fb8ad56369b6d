"""Training run: a real run of SkyRL with the tiny model, on the mocks of CUDA and vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import skyrl_on_cpu
import torch

from gem_skyrl import GemConfig, train

__all__ = ["BrokenExp", "run"]

_SETTINGS = [
    "trainer.policy.optimizer_config.lr=1e-3",
    "trainer.algorithm.use_kl_loss=false",
    "trainer.train_batch_size=4",
    "trainer.policy_mini_batch_size=4",
    "trainer.critic_mini_batch_size=4",
    "trainer.micro_train_batch_size_per_gpu=8",
    "trainer.micro_forward_batch_size_per_gpu=8",
    "trainer.epochs=100",
    "trainer.eval_before_train=false",
    "trainer.ckpt_interval=-1",
    "generator.n_samples_per_prompt=2",
    "generator.max_input_length=512",
    "generator.sampling_params.max_generate_length=24",
]
"""SkyRL's settings of a small run: 4 seeds, each played twice, and one optimizer step per batch."""


class _BrokenEngine(skyrl_on_cpu.FileEngine):
    """Engine that fails with the weights of the first update."""

    async def generate(self, input_batch: Any, model: str | None = None) -> Any:
        if self.weight_version > 1:
            raise RuntimeError("the engine is out of memory")
        return await super().generate(input_batch, model)


class BrokenExp(skyrl_on_cpu.CpuExp):
    """Experiment whose engine fails after the first update."""

    def get_inference_client(self) -> _BrokenEngine:
        torch.set_num_threads(1)
        return _BrokenEngine(self.cfg.trainer.policy.model.path, self.cfg.trainer.seed)


def run(
    out: Path,
    model: str,
    config: dict[str, Any],
    settings: Sequence[str],
    experiment: type[skyrl_on_cpu.CpuExp] = skyrl_on_cpu.CpuExp,
) -> None:
    """Train. Writes metrics, record and checkpoints to `out`."""
    named = [
        f"trainer.policy.model.path={model}",
        f"trainer.ckpt_path={out}/checkpoints",
        f"trainer.export_path={out}/exports",
    ]
    train(
        GemConfig(**config, record=str(out / "episodes.jsonl"), metrics=str(out / "metrics.jsonl")),
        [*_SETTINGS, *skyrl_on_cpu.SETTINGS, *named, *settings],
        experiment,
    )
