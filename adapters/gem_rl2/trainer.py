"""Trainer: runs RL2 with gem's per-turn advantages.

RL2 computes advantages in the function `compute_advantages`, on the rank that holds the whole
batch, and has no hook for them. gem replaces that function during training, and functions of RL2's
actor and critic: `updates.py` names them. Everything else is RL2's own code.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import RL2.trainer.ppo as rl2_ppo
import torch
import torch.distributed as dist
import wandb

from gem_core.adapter_kit.batch import as_trained, check_sequence, sequences_or_padding
from gem_core.adapter_kit.critic import critic_targets, value_positions
from gem_core.adapter_kit.patching import patched
from gem_core.adapter_kit.trainer_rollout import try_environment
from gem_core.errors import BatchMismatchError
from gem_core.training.config import FIRST_HELD_OUT_SEED
from gem_core.training.metrics import BatchMetrics, logprob_gap
from gem_core.types import Episode
from gem_rl2.checkpoint import patched_checkpoints
from gem_rl2.config import GemConfig, check_settings, compose, longest_sequence
from gem_rl2.convert import actions_of, per_token, turn_starts
from gem_rl2.critic import TARGETS, TurnCritic
from gem_rl2.rollout import GemRollout, RolloutState
from gem_rl2.updates import Worker, release_workers, watched_updates

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
        try_environment(config)
        longest = longest_sequence(settings, with_critic=config.needs_values)
        rollout = partial(GemRollout, config=config, max_context=longest)
        with patched(rl2_ppo, "Rollout", rollout, "config"):
            super().__init__(settings)
        if self.critic is not None:
            TurnCritic.replace(self.critic, self.rollout.state)

    def train(self) -> None:
        """Train to the end, then end RL2's servers; the trainer cannot be used again."""
        try:
            with (
                patched_checkpoints(self.gem_config),
                patched_trainer(self.rollout.state, "config raw_tensor_dict cu_seqs step"),
            ):
                super().train()
        finally:
            self.rollout.close()
            self._folder.cleanup()


def prepare_settings(settings: Any, config: GemConfig, folder: str | Path) -> None:
    """Check RL2's settings, write the data files to `folder`, and set data paths and estimator."""
    check_settings(settings, config)
    settings.train_data.path, settings.test_data.path = write_data(config, Path(folder))
    # RL2 loads a critic for `gae`; otherwise, the name is for its printout and log
    settings.adv.estimator = "gae" if config.needs_values else "gem"
    settings.adv.gamma = config.gamma


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
def patched_trainer(
    state: RolloutState, parameters: str, workers: Sequence[Worker] | None = None
) -> Iterator[None]:
    """Replace RL2's advantages with gem's and write the metrics file, inside the block.

    `parameters`: the parameter names of RL2's `compute_advantages`. `workers`: the modules with
    RL2's losses; by default those of the release.
    """

    def compute_advantages(settings: Any, batch: dict[str, Any], cu_seqs: Any, step: int) -> None:
        put_advantages(state, batch, cu_seqs, step)

    with (
        patched(rl2_ppo, "compute_advantages", compute_advantages, parameters),
        watched_updates(state, release_workers(state) if workers is None else workers),
    ):
        yield


def put_advantages(state: RolloutState, batch: dict[str, Any], cu_seqs: Any, step: int) -> None:
    """Write gem's advantages: one number per token, 0 on untrained tokens.

    Statistics cover all ranks, because this rank holds the whole batch. With a critic, also write
    its targets, at the first token of each trained turn.
    """
    config, numbers = state.config, list(state.ledger.find(batch))
    in_batch = state.ledger.take(batch, cu_seqs)
    check_batch(batch, cu_seqs, in_batch, state.end_id)
    values: list[list[float]] | None = None
    returns: list[list[float]] = []
    if config.needs_values:
        values = _values(state, batch, cu_seqs, dict(zip(numbers, in_batch)))
        returns = critic_targets(config, in_batch, values)
        batch["returns"] = torch.zeros(batch["states"].shape)
        batch[TARGETS] = torch.zeros_like(batch["action_mask"])
    per_turn = config.compute_advantages(in_batch, values=values)
    batch["advantages"] = torch.zeros(batch["states"].shape, dtype=torch.float32)
    for n, (start, episode) in enumerate(zip(cu_seqs.tolist(), in_batch)):
        for i, sequence in enumerate(sequences_or_padding(episode, state.end_id), start):
            tokens = torch.tensor(per_token(sequence, per_turn[n]), dtype=torch.float32)
            batch["advantages"][i, : len(tokens)] = tokens
            for turn, position in turn_starts(sequence) if returns else ():
                batch["returns"][i, position] = returns[n][turn]
                batch[TARGETS][i, position] = 1
    state.record(as_trained(e, a, step - 1) for e, a in zip(in_batch, per_turn))
    state.record(state.ledger.drop())
    _log(state, batch, BatchMetrics.of(in_batch, per_turn), step)


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


def _values(
    state: RolloutState, batch: Mapping[str, Any], cu_seqs: Any, in_batch: Mapping[int, Episode]
) -> list[list[float]]:
    """Return the critic's values of each episode: one per turn, and one for the end if cut."""
    values = []
    for start, (number, episode) in zip(cu_seqs.tolist(), in_batch.items()):
        sequences = sequences_or_padding(episode, state.end_id)
        positions = value_positions(episode, sequences)
        values.append([float(batch["values"][start + i, position]) for i, position in positions])
        if number in state.last_values:
            values[-1].append(state.last_values[number])
    return values


def _log(state: RolloutState, batch: Mapping[str, Any], trained: BatchMetrics, step: int) -> None:
    """Log the metrics that are known only now. RL2 may have dropped groups after playing them."""
    sums = {k: v for k, v in trained.breakdown.items() if k.endswith("advantage_abs")}
    state.metrics = replace(
        state.metrics,
        tokens=trained.tokens,
        breakdown={**state.metrics.breakdown, **sums},
    )
    state.logprob_gap = {}
    if "old_logps" in batch:
        mask = batch["action_mask"].bool()
        state.logprob_gap = logprob_gap(
            batch["llm_logps"][mask].tolist(), batch["old_logps"][mask].tolist()
        )
    means = trained.means()
    shown = {**{name: means[name] for name in sums}, **state.logprob_gap}
    wandb.log({f"gem/{name}": value for name, value in shown.items()}, step=step)
