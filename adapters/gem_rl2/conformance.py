"""Conformance: runs the golden episodes through RL2's real rollout, batch and loss.

Recorded episodes replace the play; played cases replace only the response of RL2's router.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

import RL2.trainer.ppo as rl2_ppo
import RL2.workers.rollout as rl2_rollout
import torch
import torch.distributed as dist
import wandb
from gem_conformance.golden import END, Case
from gem_conformance.harness import (
    Harness,
    TrainedSequence,
    run_rank,
    start_ranks,
)
from gem_conformance.played import PlayedCase, answer, engine_reason
from omegaconf import OmegaConf
from RL2.utils.sequences import tensor_dict_to_minibatches
from RL2.workers.actor import Actor
from torch.distributed.device_mesh import init_device_mesh

from gem_core.adapter_kit.batch import sequences_or_padding
from gem_core.adapter_kit.patching import patched
from gem_core.adapter_kit.ports import free_port
from gem_core.policies.tiny import tiny_model_path
from gem_core.types import Episode, Task
from gem_rl2 import ADAPTER
from gem_rl2.config import GemConfig, compose
from gem_rl2.critic import TurnCritic
from gem_rl2.rollout import GemRollout, RolloutState
from gem_rl2.trainer import patched_trainer, prepare_settings
from gem_rl2.unsharded_actor import UnshardedActor, without_cuda

__all__ = ["RL2Harness", "harness"]


class _WithoutServers(GemRollout):
    """Rollout without servers and router."""

    def __init__(self, settings: Any, config: GemConfig, max_context: int | None = None) -> None:
        from transformers import AutoTokenizer

        self.config, self.state = settings, RolloutState(config, max_context)
        self.tokenizer = AutoTokenizer.from_pretrained(tiny_model_path())
        self.state.prepare(self.tokenizer)
        self.worker_url = self.router_url = "http://nowhere"
        self.train_sampling_params = OmegaConf.to_container(settings.train_sampling_params)
        self.device_mesh = init_device_mesh(
            "cpu", (dist.get_world_size(), 1), mesh_dim_names=("dp", "tp")
        )

    def batch(self, seeds: Sequence[int], step: int = 1) -> tuple[Any, Any]:
        """Return (tensors, cu_seqs); (None, None) on all ranks but the first."""
        data = [{"extra_info": {"seed": seed}} for seed in seeds]
        self._loop = asyncio.new_event_loop()
        with (
            patched(rl2_rollout, "make_request", lambda *args: None, "url endpoint payload"),
            closing(self._loop),
        ):
            batch: tuple[Any, Any] = self(data, True, step)
            self._loop.run_until_complete(self.state.rest())
            return batch


class _Replay(_WithoutServers):
    """Rollout that returns recorded episodes: seed i gives episode i."""

    recorded: Sequence[Episode]

    async def episode(self, task: Task, train: bool) -> Episode:
        assert task.seed is not None
        return self.recorded[task.seed]


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


class ShardedGradientActor(Actor):
    """RL2's own actor, which keeps the gradient instead of stepping the optimizer.

    FSDP has the weights of a layer in one flat parameter, and computes in bfloat16.
    """

    gradient: dict[str, Any]

    def optimizer_step(self) -> float:
        from RL2.utils.checkpointing import get_state_dict  # not in the main branch

        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(parameter.grad)
        # the gradient has now the place, and so the names, of the weights
        weights = get_state_dict(self, full_state_dict=True)
        tied = ["lm_head.weight"] if self.model.module.config.tie_word_embeddings else []
        self.gradient = {name: tensor for name, tensor in weights.items() if name not in tied}
        return 0.0


class _GoldenCritic:
    """Mock of RL2's critic that returns the golden value where each turn begins."""

    def __init__(self, case: Case) -> None:
        self._values: dict[tuple[int, ...], dict[int, float]] = {}
        """The values at some positions of each sequence, by its ids without the last."""
        self._ends: dict[tuple[int, ...], float] = {}
        """The value of each state that follows these ids."""
        for episode, numbers in zip(case.episodes, case.arguments["values"]):
            for sequence in sequences_or_padding(episode, END):
                positions = {turn: start - 1 for turn, start, _ in sequence.spans}
                self._values[sequence.ids[:-1]] = {
                    positions[turn]: value
                    for turn, value in enumerate(numbers)
                    if turn in positions
                }
                self._ends[sequence.ids] = numbers[-1]

    def compute_values(self, batch: Any, step: int) -> Any:
        values = torch.full(batch["states"].shape, 99.0)
        lengths = (batch["eos_mask"].argmax(-1) + 1).tolist()
        for row, states, length in zip(values, batch["states"].tolist(), lengths):
            ids = tuple(states[:length])
            ends = [end for played, end in self._ends.items() if ids[: len(played)] == played]
            for position, value in self._values.get(ids, {length - 1: sum(ends)}).items():
                row[position] = value
        return {**batch, "values": values}


class RL2Harness(Harness):
    """Harness for RL2: its own code on the tiny model, without servers.

    RL2's FSDP actor computes in bfloat16 on a GPU. `UnshardedActor` replaces it otherwise.
    """

    adapter = ADAPTER
    carries = frozenset({"logprobs", "rewards"})
    only_cpu = False

    def __init__(self, settings: Sequence[str] = ()) -> None:
        """`settings`: further hydra overrides."""
        self.settings = settings

    def train(self, case: Case) -> list[TrainedSequence]:
        with _Run(case, self.settings, self.device) as run:
            return in_order(sequences_in([self._batch(run)]), [case.episodes])[0]

    def gradient(self, case: Case) -> Mapping[str, Any]:
        with _Run(case, self.settings, self.device) as run:
            actor = self._actor(run.settings.actor)
            actor.update(self._batch(run), 1)
            return actor.gradient

    def _actor(self, settings: Any) -> _GradientActor | ShardedGradientActor:
        if not self.bfloat16:
            return _GradientActor(settings, True)
        if self.device == "cuda":
            return ShardedGradientActor(settings, True)
        actor = _GradientActor(settings, True)
        actor.model.to(torch.bfloat16)
        return actor

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

    def play(self, case: PlayedCase) -> list[Episode]:
        """Play on a scripted router, through RL2's rollout."""

        async def generate(url: str, states: list[int], sampling_params: Any) -> Any:
            return scripted_response(states, sampling_params, self.end_id)

        with _Run(GemConfig(**case.config), device=self.device) as run:
            rollout = _WithoutServers(run.settings.rollout, run.config, self.max_context)
            with patched(rl2_rollout, "async_generate", generate, "url states sampling_params"):
                tensors, _ = rollout.batch(case.seeds, case.update + 1)
            episodes = list(rollout.state.ledger.find(tensors).values())
            rollout.state.close()
            return episodes

    def _batch(self, run: _Run) -> Any:
        """Run RL2's own code on the episodes, up to the input of its loss."""
        return run.batch()


class _Run(ExitStack):
    """Context that sets up RL2 for one case or config: process group, settings, advantages."""

    case: Case

    def __init__(
        self, case: Case | GemConfig, settings: Sequence[str] = (), device: str = "cpu"
    ) -> None:
        super().__init__()
        self.more_settings, self.device = settings, device
        if isinstance(case, GemConfig):
            self.config = case
            return
        self.case = case
        self.config = GemConfig(
            "game:GuessTheNumber-v0-easy",
            seeds=64,
            advantage=case.estimator,
            gamma=case.gamma,
            estimator_kwargs={k: v for k, v in case.arguments.items() if k != "values"},
            max_turn_tokens=16,
        )

    def __enter__(self) -> _Run:
        super().__enter__()
        start_process_group(self.device)
        folder = self.enter_context(tempfile.TemporaryDirectory())
        self.settings = compose(
            [
                f"actor.model_name={tiny_model_path()}",
                "actor.max_length_per_device=4096",
                "train_data.prompts_per_rollout=1",  # for the check
                "train_data.responses_per_prompt=2",  # for the check; seeds define the groups
                f"trainer.save_dir={folder}",
                *self.more_settings,
            ]
        )
        prepare_settings(self.settings, self.config, folder)
        OmegaConf.resolve(self.settings)
        self.settings.rollout.responses_per_prompt = 1
        self.settings.rollout.dynamic_filtering = False
        if self.device == "cpu":
            self.enter_context(without_cuda())
        self.enter_context(patched(wandb, "log", lambda *args, **kwargs: None))
        return self

    def batch(self) -> Any:
        """Return RL2's batch with advantages; None on all ranks but the first."""
        rollout = _Replay(self.settings.rollout, self.config)
        rollout.recorded = self.case.episodes
        tensors, cu_seqs = rollout.batch(range(len(rollout.recorded)))
        self.enter_context(patched_trainer(rollout.state, "config raw_tensor_dict cu_seqs step"))
        if self.config.needs_values:
            critic = _GoldenCritic(self.case)
            TurnCritic.replace(critic, rollout.state)
            tensors = critic.compute_values(tensors, 1)
        if dist.get_rank() == 0:
            rl2_ppo.compute_advantages(self.settings.adv, tensors, cu_seqs, 1)
        return tensors


def harness() -> RL2Harness:
    """Return the harness that `gem-rl conformance rl2` runs."""
    return RL2Harness()


def scripted_response(ids: Sequence[int], params: Mapping[str, Any], end_id: int) -> dict[str, Any]:
    """Return the script's answer as SGLang responds."""
    generation = answer(ids, params["max_new_tokens"], end_id)
    tokens = zip(generation.logprobs or (), generation.ids)
    meta = {
        "finish_reason": {"type": engine_reason(generation, params["max_new_tokens"])},
        "output_token_logprobs": [[logprob, id, None] for logprob, id in tokens],
        "completion_tokens": len(generation.ids),
    }
    return {"meta_info": meta}


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
        for played in (s for episode in part for s in sequences_or_padding(episode, END)):
            same_ids = (i for i, s in enumerate(remaining) if list(s.ids) == list(played.ids))
            index = next(same_ids, None)
            if index is not None:
                ordered[-1].append(remaining.pop(index))
    ordered[-1] += remaining
    return ordered


def start_process_group(device: str = "cpu") -> None:
    """Start a process group: of this process only, unless RANK and others are set."""
    if not dist.is_initialized():
        for name, value in {
            "RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        }.items():
            os.environ.setdefault(name, value)
        dist.init_process_group("gloo" if device == "cpu" else "cpu:gloo,cuda:nccl")


def _rank(case: Case) -> list[TrainedSequence]:
    """Return the sequences that RL2's own scatter gives this rank."""
    with _Run(case) as run:
        actor = UnshardedActor(run.settings.actor, True)
        return sequences_in(tensor_dict_to_minibatches(actor, run.batch(), False, False))


if __name__ == "__main__":
    run_rank(_rank)
