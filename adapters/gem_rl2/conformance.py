"""Conformance: runs the golden episodes through RL2's real rollout, batch and loss."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

import RL2.trainer.ppo as rl2_ppo
import RL2.workers.actor as rl2_actor
import RL2.workers.rollout as rl2_rollout
import torch.distributed as dist
import wandb
from gem_conformance.golden import Case
from gem_conformance.harness import (
    Harness,
    TrainedSequence,
    run_rank,
    start_ranks,
)
from omegaconf import OmegaConf
from RL2.utils.sequences import tensor_dict_to_minibatches
from torch.distributed.device_mesh import init_device_mesh

from gem_core.adapter_kit.batch import sequences_or_padding
from gem_core.adapter_kit.patching import patched
from gem_core.adapter_kit.ports import free_port
from gem_core.policies.tiny import tiny_model_path
from gem_core.types import Episode, Task
from gem_rl2 import ADAPTER
from gem_rl2.config import GemConfig, compose
from gem_rl2.rollout import Episodes, GemRollout
from gem_rl2.trainer import patched_trainer, prepare_settings
from gem_rl2.unsharded_actor import UnshardedActor, without_cuda

__all__ = ["RL2Harness", "harness"]


class _Replay(GemRollout):
    """Rollout without servers that returns recorded episodes: seed i gives episode i."""

    def __init__(self, settings: Any, config: GemConfig, episodes: Sequence[Episode]) -> None:
        self.config, self.episodes, self.recorded = settings, Episodes(config), episodes
        self.worker_url = "http://nowhere"
        self.device_mesh = init_device_mesh(
            "cpu", (dist.get_world_size(), 1), mesh_dim_names=("dp", "tp")
        )

    async def episode(self, task: Task, train: bool) -> Episode:
        assert task.seed is not None
        return self.recorded[task.seed]

    def batch(self) -> tuple[Any, Any]:
        """Return (tensors, cu_seqs); (None, None) on all ranks but the first."""
        data = [{"extra_info": {"seed": seed}} for seed in range(len(self.recorded))]
        self._loop = asyncio.new_event_loop()
        with (
            patched(rl2_rollout, "make_request", lambda *args: None, "url endpoint payload"),
            closing(self._loop),
        ):
            batch: tuple[Any, Any] = self(data, True, 1)
            return batch


class _GradientActor(UnshardedActor):
    """Actor that keeps the gradient instead of stepping the optimizer."""

    gradient: dict[str, Any]

    def optimizer_step(self) -> float:
        self.gradient = {
            n: p.grad.detach().clone()
            for n, p in self.model.named_parameters()
            if p.grad is not None
        }
        return 0.0


class RL2Harness(Harness):
    """Harness for RL2: its own code on the tiny model, in float32, without servers."""

    adapter = ADAPTER
    carries = frozenset({"logprobs", "rewards"})

    def train(self, case: Case) -> list[TrainedSequence]:
        with _Run(case) as run:
            return in_order(sequences_in([self._batch(run)]), [case.episodes])[0]

    def gradient(self, case: Case) -> Mapping[str, Any]:
        with _Run(case) as run:
            actor = _GradientActor(run.settings.actor, True)
            actor.update(self._batch(run), 1)
            return actor.gradient

    def ranks(self, case: Case, parts: Sequence[Sequence[Episode]]) -> list[list[TrainedSequence]]:
        """Run two processes under gloo.

        RL2 plays and computes advantages on one rank, then scatters the sequences by length. We
        sort them back into the parts.
        """
        scattered: list[list[TrainedSequence]] = start_ranks(
            "gem_rl2.conformance", [case] * len(parts)
        )
        if not all(any(any(sequence.mask) for sequence in sequences) for sequences in scattered):
            sizes = [len(sequences) for sequences in scattered]
            raise RuntimeError(f"RL2 left a rank without a trained sequence; sequences: {sizes}")
        return in_order([sequence for sequences in scattered for sequence in sequences], parts)

    def _batch(self, run: _Run) -> Any:
        """Run RL2's own code on the episodes, up to the input of its loss."""
        return run.batch()


class _Run(ExitStack):
    """Context that sets up RL2 for one case: process group, settings, advantages."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        self.config = GemConfig(
            "game:GuessTheNumber-v0-easy",
            seeds=64,
            advantage=case.estimator,
            gamma=case.gamma,
            estimator_kwargs=case.arguments,
            max_turn_tokens=16,
        )

    def __enter__(self) -> _Run:
        super().__enter__()
        start_gloo()
        folder = self.enter_context(tempfile.TemporaryDirectory())
        self.settings = compose(
            [
                f"actor.model_name={tiny_model_path()}",
                "actor.max_length_per_device=4096",
                "train_data.prompts_per_rollout=8",
                "train_data.responses_per_prompt=2",  # for the check; seeds define the groups
                f"trainer.save_dir={folder}",
            ]
        )
        prepare_settings(self.settings, self.config, folder)
        OmegaConf.resolve(self.settings)
        self.settings.rollout.responses_per_prompt = 1
        self.settings.rollout.dynamic_filtering = False
        self.enter_context(without_cuda())
        self.enter_context(patched(wandb, "log", lambda *args, **kwargs: None))
        return self

    def batch(self) -> Any:
        """Return RL2's batch with advantages; None on all ranks but the first."""
        rollout = _Replay(self.settings.rollout, self.config, self.case.episodes)
        tensors, cu_seqs = rollout.batch()
        self.enter_context(
            patched_trainer(rollout.episodes, "config raw_tensor_dict cu_seqs step", [rl2_actor])
        )
        if dist.get_rank() == 0:
            rl2_ppo.compute_advantages(self.settings.adv, tensors, cu_seqs, 1)
        return tensors


def harness() -> RL2Harness:
    """Return the harness that `gem-rl conformance rl2` runs."""
    return RL2Harness()


def sequences_in(batches: Sequence[Mapping[str, Any]]) -> list[TrainedSequence]:
    """Return RL2's tensors without padding, as sequences.

    RL2 shifts all tensors but `states` by one: the first token of a sequence is in `states` only.
    """
    sequences = []
    for batch in batches:
        for i, length in enumerate((batch["eos_mask"].argmax(-1) + 1).tolist()):
            if not batch["eos_mask"][i].any():
                continue  # RL2's own padding
            fields = {name: tensor[i, :length].tolist() for name, tensor in batch.items()}
            sequences.append(
                TrainedSequence(
                    ids=[*fields["states"], fields["actions"][-1]],
                    mask=[0, *fields["action_mask"]],
                    advantages=[0.0, *fields["advantages"]],
                    logprobs=[0.0, *fields["llm_logps"]],
                    rewards=[0.0, *fields["rewards"]],
                )
            )
    return sequences


def in_order(
    sequences: Sequence[TrainedSequence], parts: Sequence[Sequence[Episode]]
) -> list[list[TrainedSequence]]:
    """Sort sequences into the parts and the order of their episodes. Unknown ones come last."""
    remaining = list(sequences)
    ordered: list[list[TrainedSequence]] = []
    for part in parts:
        ordered.append([])
        for played in (s for episode in part for s in sequences_or_padding(episode, 0)):
            same_ids = (i for i, s in enumerate(remaining) if list(s.ids) == list(played.ids))
            index = next(same_ids, None)
            if index is not None:
                ordered[-1].append(remaining.pop(index))
    ordered[-1] += remaining
    return ordered


def start_gloo() -> None:
    """Start a process group on the CPU: of this process only, unless RANK and others are set."""
    if not dist.is_initialized():
        for name, value in {
            "RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        }.items():
            os.environ.setdefault(name, value)
        dist.init_process_group("gloo")


def _rank(case: Case) -> list[TrainedSequence]:
    """Return the sequences that RL2's own scatter gives this rank."""
    with _Run(case) as run:
        actor = UnshardedActor(run.settings.actor, True)
        return sequences_in(tensor_dict_to_minibatches(actor, run.batch(), False, False))


if __name__ == "__main__":
    run_rank(_rank)
