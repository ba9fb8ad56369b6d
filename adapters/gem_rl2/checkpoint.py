"""Checkpoint: the settings that a resumed run must share with the run that saved a checkpoint.

RL2 restores the position in its data, which counts batches. With other seeds, or batches of another
size, the position would belong to other seeds: some would be trained twice, and others never. gem
writes these settings to `gem.json` in the folder of each checkpoint, before RL2 saves the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import RL2.trainer.ppo as rl2_ppo
import torch.distributed as dist

from gem_core.adapter_kit.patching import patched
from gem_core.adapter_kit.progress import changed_settings
from gem_core.adapter_kit.settings import reject
from gem_core.errors import ConfigError
from gem_rl2.config import GemConfig

__all__ = ["patched_checkpoints"]

_NAME = "gem.json"


@contextmanager
def patched_checkpoints(config: GemConfig) -> Iterator[None]:
    """Save and check the settings of a run with RL2's checkpoints, inside the block."""
    save, load = (
        partial(_save, config, rl2_ppo.save_ckpt),
        partial(_load, config, rl2_ppo.load_ckpt),
    )
    with (
        patched(rl2_ppo, "save_ckpt", save, "trainer workers step"),
        patched(rl2_ppo, "load_ckpt", load, "trainer workers"),
    ):
        yield


def _save(
    config: GemConfig, save: Callable[..., None], trainer: Any, workers: Any, step: int
) -> None:
    """Save a checkpoint as RL2 does, if one is due, and the settings of the run."""
    own = trainer.config.trainer
    if own.save_freq is not None and step % own.save_freq == 0 and dist.get_rank() == 0:
        file = Path(own.save_dir) / f"step{step}" / _NAME
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(_same(config, trainer.config)), encoding="utf-8")
    save(trainer, workers, step)


def _load(config: GemConfig, load: Callable[..., int], trainer: Any, workers: Any) -> int:
    """Load RL2's checkpoint, if there is one, and return its step.

    Raises `ConfigError` if another run saved it. A loader that was saved after the last batch of an
    epoch yields nothing in its first pass: RL2 would skip the next epoch.
    """
    folder = _folder(trainer.config.trainer)
    if folder is not None:
        where = f"the checkpoint {folder}"
        if not (folder / _NAME).is_file():
            raise ConfigError(
                f"{where} has no {_NAME}; resume from a checkpoint that gem_rl2 saved"
            )
        saved = json.loads((folder / _NAME).read_text(encoding="utf-8"))
        reject(changed_settings(where, saved, _same(config, trainer.config)))
    step = load(trainer, workers)
    if step and step % len(trainer.train_dataloader) == 0:
        next(iter(trainer.train_dataloader), None)
    return step


def _folder(settings: Any) -> Path | None:
    """Return the folder of the checkpoint that RL2 would load; None if there is none."""
    if settings.load_ckpt_from != "latest":
        return None if settings.load_ckpt_from is None else Path(settings.load_ckpt_from)
    steps = Path(settings.save_dir).glob("step*")
    return max(steps, key=lambda folder: int(folder.name[len("step") :]), default=None)


def _same(config: GemConfig, settings: Any) -> dict[str, Any]:
    """Return the settings that decide which update has which seeds."""
    return {
        "env_id": config.env_id,
        "seeds": config.train_seeds,
        "prompts_per_rollout": settings.train_data.prompts_per_rollout,
        "responses_per_prompt": settings.train_data.responses_per_prompt,
    }
