"""Trainer: gem's episodes and advantages in RL2's PPOTrainer, one number per token, and `train`.

RL2's trainer calls `compute_advantages` by the name it imported, on the rank that holds the whole batch, and offers no hook. So
that name is replaced during training. So are two names of its actor: `count_total`, the divisor of the loss, which is 0 for a
batch of failed episodes and would turn every weight into NaN, and `rank0_log`, to which it reports loss and gradient norm.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import RL2.trainer.ppo as rl2_ppo
import torch
import torch.distributed as dist
import wandb

from gem_core.adapter_kit.batch import check_sequence, mean_abs_advantage, sequences_or_padding
from gem_core.adapter_kit.patching import patched
from gem_core.adapter_kit.update_log import UpdateLog
from gem_core.errors import BatchMismatchError
from gem_core.training.config import FIRST_HELD_OUT_SEED
from gem_core.training.metrics import BatchMetrics
from gem_core.types import Episode
from gem_rl2.config import GemConfig, check_settings, compose, longest_sequence
from gem_rl2.convert import actions_of, per_token
from gem_rl2.rollout import Episodes, GemRollout

__all__ = [
    "GemPPOTrainer",
    "check_batch",
    "patched_trainer",
    "prepare_settings",
    "process_group",
    "put_advantages",
    "train",
    "write_data",
]


def train(config: GemConfig, settings: Sequence[str]) -> GemPPOTrainer:
    """Train with RL2. `settings`: RL2's own, as on its command line: `["actor.model_name=...", ...]`. Returns the trainer."""
    composed = compose(settings)
    with process_group(rl2_ppo.initialize_global_process_group):
        trainer = GemPPOTrainer(composed, config)
        trainer.train()
    return trainer


class GemPPOTrainer(rl2_ppo.PPOTrainer):
    """PPOTrainer on gem's episodes, with per-turn advantages by the estimator its `GemConfig` names."""

    rollout: GemRollout

    def __init__(self, settings: Any, config: GemConfig) -> None:
        """`settings`: RL2's own, as `compose` returns them. Advantages and data are filled in."""
        self.gem_config = config
        self._folder = tempfile.TemporaryDirectory(prefix="gem_rl2_")
        prepare_settings(settings, config, self._folder.name)
        rollout = partial(GemRollout, config=config, max_context=longest_sequence(settings))
        with patched(rl2_ppo, "Rollout", rollout, "config"):
            super().__init__(settings)

    def train(self) -> None:
        """Train to the end. The trainer cannot be used again: RL2's servers end, too."""
        import RL2.workers.actor as rl2_actor

        try:
            with patched_trainer(
                self.rollout.episodes, "config raw_tensor_dict cu_seqs step", [rl2_actor]
            ):
                super().train()
        finally:
            self.rollout.close()
            self._folder.cleanup()


def prepare_settings(settings: Any, config: GemConfig, folder: str | Path) -> None:
    """Check RL2's settings and fill in what `config` decides: data, in files under `folder`, and advantages."""
    check_settings(settings, config)
    settings.train_data.path, settings.test_data.path = write_data(config, Path(folder))
    settings.adv.estimator, settings.adv.gamma = "gem", config.gamma  # for RL2's printout and log


def write_data(config: GemConfig, folder: Path) -> tuple[str, str]:
    """Write RL2's data files, one row per seed, and return the paths of train and test data. RL2 reads test data even where
    nothing is evaluated."""
    paths = folder / "train.jsonl", folder / "test.jsonl"
    held_out = config.held_out_seeds or [max([FIRST_HELD_OUT_SEED, *config.train_seeds]) + 1]
    for path, seeds in zip(paths, (config.train_seeds, held_out)):
        path.write_text(
            "".join(json.dumps({"extra_info": {"seed": seed}}) + "\n" for seed in seeds),
            encoding="utf-8",
        )
    return str(paths[0]), str(paths[1])


@contextmanager
def process_group(start: Callable[..., None], *arguments: Any) -> Iterator[None]:
    """RL2's process group, started as RL2's `main` does, unless there is one already."""
    if dist.is_initialized():
        yield
        return
    start(*arguments)
    yield
    dist.destroy_process_group()  # not after an error, when other ranks may still wait for this one


@contextmanager
def patched_trainer(episodes: Episodes, parameters: str, actors: Sequence[Any]) -> Iterator[None]:
    """While it lasts, RL2's trainer uses gem's advantages and each update is written to `GemConfig.metrics`. `parameters`: those
    of RL2's `compute_advantages`. `actors`: the modules of RL2's loss."""
    updates = UpdateLog(episodes.config.metrics if dist.get_rank() == 0 else None)

    def compute_advantages(settings: Any, batch: dict[str, Any], cu_seqs: Any, step: int) -> None:
        put_advantages(episodes, batch, cu_seqs, step)

    with ExitStack() as patches:
        patches.enter_context(
            patched(rl2_ppo, "compute_advantages", compute_advantages, parameters)
        )
        for actor in actors:
            patches.enter_context(patched(actor, "count_total", _at_least_one(actor.count_total)))
            patches.enter_context(
                patched(
                    actor, "rank0_log", _logged(actor.rank0_log, episodes, updates), "metrics step"
                )
            )
        yield


def put_advantages(episodes: Episodes, batch: dict[str, Any], cu_seqs: Any, step: int) -> None:
    """Write `advantages`: statistics over the whole batch, one number per token, 0 where nothing is trained."""
    trained = episodes.ledger.take(batch, cu_seqs)
    check_batch(batch, cu_seqs, trained, episodes.end_id)
    per_turn = episodes.config.compute_advantages(trained)
    advantages = torch.zeros(batch["states"].shape, dtype=torch.float32)
    for start, episode, numbers in zip(cu_seqs.tolist(), trained, per_turn):
        for row, sequence in enumerate(sequences_or_padding(episode, episodes.end_id), start):
            tokens = torch.tensor(per_token(sequence, numbers), dtype=torch.float32)
            advantages[row, : len(tokens)] = tokens
    batch["advantages"] = advantages
    episodes.metrics = replace(
        episodes.metrics, tokens=BatchMetrics.of(trained).tokens
    )  # RL2 may have dropped groups
    episodes.advantage_abs = mean_abs_advantage(trained, per_turn)
    wandb.log({"gem/advantage_abs": episodes.advantage_abs}, step=step)


def check_batch(
    batch: Mapping[str, Any], cu_seqs: Any, episodes: Sequence[Episode], end_id: int
) -> None:
    """Raise `BatchMismatchError` unless the batch for the loss holds the ids and the loss mask that were played."""
    for trajectory, (episode, (start, end)) in enumerate(zip(episodes, pairwise(cu_seqs.tolist()))):
        sequences = sequences_or_padding(episode, end_id)
        if len(sequences) != end - start:
            raise BatchMismatchError(
                f"trajectory {trajectory} of RL2's batch is not what was played: it has {end - start} sequences, and the episode "
                f"has {len(sequences)}. A patch or another version of RL2 changes batches; use a version the adapter supports"
            )
        for row, sequence in enumerate(sequences, start):
            where, mask = f"sequence {row} of RL2's batch", batch["action_mask"][row].tolist()
            check_sequence(
                where, batch["states"][row].tolist(), mask, sequence.ids[:-1], sequence.mask[1:]
            )
            check_sequence(
                where,
                batch["actions"][row].tolist(),
                mask,
                actions_of(sequence)[1:],
                sequence.mask[1:],
            )


def _at_least_one(count_total: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        total = count_total(*args, **kwargs)
        return (
            tuple(max(number, 1) for number in total) if isinstance(total, tuple) else max(total, 1)
        )

    return counted


def _logged(
    rank0_log: Callable[..., None], episodes: Episodes, updates: UpdateLog
) -> Callable[..., None]:
    def log(metrics: Mapping[str, Sequence[float]], step: int) -> None:
        rank0_log(metrics, step)
        if dist.get_rank() == 0:
            loss, grad_norm = (
                sum(values) / len(values)
                for values in (metrics["actor/loss"], metrics["actor/grad_norm"])
            )
            updates.write(
                step - 1,
                episodes.metrics,
                advantage_abs=episodes.advantage_abs,
                loss=loss,
                grad_norm=grad_norm,
            )

    return log
