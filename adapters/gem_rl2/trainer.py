"""Trainer: runs RL2 with gem's per-turn advantages.

RL2 computes advantages in the function `compute_advantages`, on the rank that holds the whole
batch, and has no hook for them. gem replaces that function during training, and two functions of
RL2's actor: `count_total`, the divisor of the loss, which is 0 for a batch of failed episodes and
would make every weight NaN, and `rank0_log`, which receives loss and gradient norm. Everything else
is RL2's own code.
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

from gem_core.adapter_kit.batch import check_sequence, sequences_or_padding
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
    """Train with RL2 to the end and return the trainer.

    `settings`: RL2's own, as on its command line: `["actor.model_name=...", ...]`.
    """
    composed = compose(settings)
    with process_group(rl2_ppo.initialize_global_process_group):
        trainer = GemPPOTrainer(composed, config)
        trainer.train()
    return trainer


class GemPPOTrainer(rl2_ppo.PPOTrainer):
    """PPOTrainer on gem's episodes, with gem's advantages."""

    rollout: GemRollout

    def __init__(self, settings: Any, config: GemConfig) -> None:
        """Create the trainer. `settings`: RL2's own, as `compose` returns them."""
        self.gem_config = config
        self._folder = tempfile.TemporaryDirectory(prefix="gem_rl2_")
        prepare_settings(settings, config, self._folder.name)
        rollout = partial(GemRollout, config=config, max_context=longest_sequence(settings))
        with patched(rl2_ppo, "Rollout", rollout, "config"):
            super().__init__(settings)

    def train(self) -> None:
        """Train to the end, then end RL2's servers; the trainer cannot be used again."""
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
    """Check RL2's settings, write the data files to `folder`, and set data paths and estimator."""
    check_settings(settings, config)
    settings.train_data.path, settings.test_data.path = write_data(config, Path(folder))
    settings.adv.estimator, settings.adv.gamma = "gem", config.gamma  # for RL2's printout and log


def write_data(config: GemConfig, folder: Path) -> tuple[str, str]:
    """Write RL2's train and test data, one row per seed, and return the paths of both files.

    RL2 reads test data even if it does not evaluate.
    """
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
    """Start RL2's process group with `start`, unless there is one, and destroy it at the end."""
    if dist.is_initialized():
        yield
        return
    start(*arguments)
    yield
    dist.destroy_process_group()  # not after an error: other ranks may still wait for this one


@contextmanager
def patched_trainer(episodes: Episodes, parameters: str, actors: Sequence[Any]) -> Iterator[None]:
    """Replace RL2's advantages with gem's and write the metrics file, inside the block.

    `parameters`: the parameter names of RL2's `compute_advantages`. `actors`: the modules with
    RL2's loss.
    """
    updates = UpdateLog.of(episodes.config, write=dist.get_rank() == 0)

    def compute_advantages(settings: Any, batch: dict[str, Any], cu_seqs: Any, step: int) -> None:
        put_advantages(episodes, batch, cu_seqs, step)

    with ExitStack() as patches:
        patches.enter_context(
            patched(rl2_ppo, "compute_advantages", compute_advantages, parameters)
        )
        for actor in actors:
            patches.enter_context(patched(actor, "count_total", _at_least_one(actor.count_total)))
            log = _log_and_write(actor.rank0_log, episodes, updates)
            patches.enter_context(patched(actor, "rank0_log", log, "metrics step"))
        yield


def put_advantages(episodes: Episodes, batch: dict[str, Any], cu_seqs: Any, step: int) -> None:
    """Write gem's advantages: one number per token, 0 on untrained tokens.

    Statistics cover all ranks, because this rank holds the whole batch.
    """
    in_batch = episodes.ledger.take(batch, cu_seqs)
    check_batch(batch, cu_seqs, in_batch, episodes.end_id)
    per_turn = episodes.config.compute_advantages(in_batch)
    advantages = torch.zeros(batch["states"].shape, dtype=torch.float32)
    for start, episode, numbers in zip(cu_seqs.tolist(), in_batch, per_turn):
        for i, sequence in enumerate(sequences_or_padding(episode, episodes.end_id), start):
            tokens = torch.tensor(per_token(sequence, numbers), dtype=torch.float32)
            advantages[i, : len(tokens)] = tokens
    batch["advantages"] = advantages
    # RL2 may have dropped groups, which are played but not trained
    trained = BatchMetrics.of(in_batch, per_turn)
    advantage_abs = {
        name: numbers
        for name, numbers in trained.breakdown.items()
        if name.endswith("advantage_abs")
    }
    episodes.metrics = replace(
        episodes.metrics,
        tokens=trained.tokens,
        breakdown={**episodes.metrics.breakdown, **advantage_abs},
    )
    means = trained.means()
    wandb.log({f"gem/{name}": means[name] for name in advantage_abs}, step=step)


def check_batch(
    batch: Mapping[str, Any], cu_seqs: Any, episodes: Sequence[Episode], end_id: int
) -> None:
    """Raise `BatchMismatchError` unless the batch holds the played ids and loss masks."""
    for trajectory, (episode, (start, end)) in enumerate(zip(episodes, pairwise(cu_seqs.tolist()))):
        sequences = sequences_or_padding(episode, end_id)
        if len(sequences) != end - start:
            raise BatchMismatchError(
                f"trajectory {trajectory} of RL2's batch has {end - start} sequences, but its "
                f"episode has {len(sequences)}. A patch or another version of RL2 changes batches; "
                "use a version of RL2 that the adapter supports"
            )
        for i, sequence in enumerate(sequences, start):
            where = f"sequence {i} of RL2's batch"
            states, actions, mask = (
                batch[name][i].tolist() for name in ("states", "actions", "action_mask")
            )
            expected_mask = sequence.mask[1:]
            check_sequence(where, states, mask, sequence.ids[:-1], expected_mask)
            check_sequence(where, actions, mask, actions_of(sequence)[1:], expected_mask)


def _at_least_one(count_total: Callable[..., Any]) -> Callable[..., Any]:
    """Return `count_total` with a result of at least 1."""

    def count_at_least_one(*args: Any, **kwargs: Any) -> Any:
        total = count_total(*args, **kwargs)
        if isinstance(total, tuple):
            return tuple(max(number, 1) for number in total)
        return max(total, 1)

    return count_at_least_one


def _log_and_write(
    rank0_log: Callable[..., None], episodes: Episodes, updates: UpdateLog
) -> Callable[..., None]:
    """Return `rank0_log` that also writes a line to the metrics file."""

    def log(metrics: Mapping[str, Sequence[float]], step: int) -> None:
        rank0_log(metrics, step)
        if dist.get_rank() == 0:
            loss, grad_norm = (
                sum(metrics[name]) / len(metrics[name])
                for name in ("actor/loss", "actor/grad_norm")
            )
            updates.write(
                step - 1,
                episodes.metrics,
                loss=loss,
                grad_norm=grad_norm,
            )

    return log
