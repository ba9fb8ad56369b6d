"""The dataloaders that SkyRL's trainers build from seeds."""

from __future__ import annotations

from typing import Any

import skyrl_on_cpu

from gem_skyrl import GemConfig
from gem_skyrl.config import skyrl_config
from gem_skyrl.trainer import GemDataset, GemTrainer

CONFIG = GemConfig("game:GuessTheNumber-v0-easy", seeds=8, eval_seeds=4)


def new_trainer() -> Any:
    """Return a trainer without models, whose batches have 4 seeds."""
    settings = ["trainer.train_batch_size=4", "trainer.policy_mini_batch_size=4"]
    composed = skyrl_config(CONFIG, [*settings, *skyrl_on_cpu.SETTINGS])
    train, held_out = (
        GemDataset(CONFIG.env_id, seeds) for seeds in (CONFIG.train_seeds, CONFIG.held_out_seeds)
    )
    make: Any = GemTrainer
    return make(composed, None, None, train, None, None, eval_dataset=held_out)


def seeds_of(batch: Any) -> set[int]:
    return {prompt["env_extras"]["seed"] for prompt in batch}


def test_no_process_is_started_to_read_seeds() -> None:
    """SkyRL's default starts 8 processes in every epoch and in every evaluation."""
    trainer = new_trainer()
    assert trainer.train_dataloader.num_workers == trainer.eval_dataloader.num_workers == 0
    first, second = map(seeds_of, trainer.train_dataloader)
    assert len(first) == len(second) == 4 and first | second == set(CONFIG.train_seeds)
    (evaluated,) = map(seeds_of, trainer.eval_dataloader)
    assert evaluated == set(CONFIG.held_out_seeds)


def test_resumed_epoch_has_the_other_seeds() -> None:
    loader, resumed = (new_trainer().train_dataloader for _ in range(2))
    first = seeds_of(next(iter(loader)))
    resumed.load_state_dict(loader.state_dict())  # SkyRL saves the state with a checkpoint
    (rest,) = map(seeds_of, resumed)
    assert first | rest == set(CONFIG.train_seeds) and not first & rest
