"""The conformance harness of RL2's main branch. Call `main_branch_on_cpu.prepare` before import."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import RL2.trainer.ppo as rl2_ppo
import RL2.utils.communication as communication
import RL2.workers.fsdp.actor as rl2_actor
import RL2.workers.rollout as rl2_rollout
import torch
import torch.distributed as dist
import wandb
from gem_conformance.golden import Case
from gem_conformance.harness import TrainedSequence, start_ranks
from gem_conformance.played import PlayedCase
from omegaconf import OmegaConf
from torch.distributed.device_mesh import init_device_mesh

from gem_core.adapter_kit.patching import patched
from gem_core.policies.tiny import tiny_model_path
from gem_core.types import Episode, Task
from gem_rl2 import ADAPTER, GemConfig, main_branch
from gem_rl2.conformance import (
    RL2Harness,
    _Run,
    in_order,
    scripted_response,
    sequences_in,
    start_process_group,
)
from gem_rl2.main_branch import MainBranchRollout, PausableState, compose, prepare_settings
from gem_rl2.trainer import patched_trainer
from gem_rl2.unsharded_actor import without_cuda
from gem_rl2.updates import Worker


class MainBranchActor(rl2_actor.FSDPActor):  # type: ignore[misc]
    """RL2's actor with the whole model on each rank."""

    def __init__(self, config: Any, train: bool) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.config, self.train = config.copy(), train
        self.config.offload_model = self.config.offload_optimizer = False
        self.tokenizer = AutoTokenizer.from_pretrained(config.model_name)
        self.dp_size = dist.get_world_size()
        self.device_mesh = init_device_mesh(
            "cpu", (self.dp_size, 1, 1), mesh_dim_names=("dp", "cp", "tp")
        )
        self.model = AutoModelForCausalLM.from_pretrained(
            config.model_name, dtype=torch.float32, attn_implementation="sdpa"
        )
        object.__setattr__(self.model, "module", self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **config.optimizer)
        self.scheduler = torch.optim.lr_scheduler.ConstantLR(self.optimizer, factor=1.0)


class Replay(MainBranchRollout):
    """Rollout without servers that returns recorded episodes: seed i gives episode i."""

    def __init__(self, settings: Any, state: PausableState) -> None:
        from transformers import AutoTokenizer

        self.config, self.state = settings, state
        self.tokenizer = AutoTokenizer.from_pretrained(settings.server_args.model_path)
        self.worker_url = self.router_url = "http://nowhere"
        self.device_mesh = init_device_mesh(
            "cpu", (dist.get_world_size(), 1), mesh_dim_names=("dp", "tp")
        )
        self._prepare_environment()

    def batch(self, seeds: Sequence[int], step: int = 1) -> Any:
        """Return (tensors, cu_seqs) of these seeds."""
        self.config.train.prompts_per_rollout = len(seeds)
        rows = [{"extra_info": {"seed": seed}} for seed in seeds]
        groups = [rl2_rollout.SampleGroup(self.config.train, self.tokenizer, row) for row in rows]
        self.train_dataloader = lambda size: groups
        with patched(rl2_rollout, "async_request", no_request):
            return asyncio.run(self(True, step))


class ReplayedState(PausableState):
    """Recorded episodes."""

    recorded: Sequence[Episode] = ()

    async def episode(self, task: Task, *args: Any) -> Episode:
        assert task.seed is not None
        return self.recorded[task.seed]


async def no_request(
    url: Any,
    endpoint: str,
    method: str = "POST",
    max_trials: int = 3,
    retry_delay: int = 1,
    **kwargs: Any,
) -> None:
    """Stub of RL2's request: does nothing."""


class GradientActor(MainBranchActor):
    """Actor that keeps the gradient instead of stepping the optimizer."""

    gradient: dict[str, Any]

    def _optimizer_step(self) -> float:
        self.gradient = {
            n: p.grad.detach().clone()
            for n, p in self.model.named_parameters()
            if p.grad is not None
        }
        return 0.0


class MainBranchRun(_Run):
    """Context that sets up RL2's main branch for one case."""

    def __enter__(self) -> MainBranchRun:
        start_process_group()
        communication.GLOO_GROUP = dist.group.WORLD
        folder = self.enter_context(tempfile.TemporaryDirectory())
        self.settings = compose(
            [
                f"actor.model_name={tiny_model_path()}",
                "actor.max_length_per_device=4096",
                "rollout.train.prompts_per_rollout=1",
                "rollout.train.responses_per_prompt=2",
                f"trainer.save_dir={folder}",
            ]
        )
        prepare_settings(self.settings, self.config, folder)
        OmegaConf.resolve(self.settings)
        train = self.settings.rollout.train
        train.responses_per_prompt, train.dynamic_filtering = 1, False
        self.state: PausableState = PausableState(self.config, RL2Harness.max_context)
        if hasattr(self, "case"):
            self.state = ReplayedState(self.config)
            self.state.recorded = self.case.episodes
        self.enter_context(without_cuda())
        self.enter_context(patched(wandb, "log", lambda *args, **kwargs: None))
        self.enter_context(
            patched_trainer(
                self.state,
                "config tensor_dict cu_seqs step",
                [Worker(rl2_actor, None, "minibatches key process_group")],
            )
        )
        return self

    def batch(self) -> Any:
        tensors, cu_seqs = Replay(self.settings.rollout, self.state).batch(
            range(len(self.case.episodes))
        )
        if dist.get_rank() == 0:
            numbers = list(self.state.ledger.find(tensors))
            rl2_ppo.compute_advantages(self.settings, tensors, cu_seqs, 1)
            # RL2 returns episodes in the order in which they end
            bounds = list(zip(cu_seqs.tolist(), cu_seqs.tolist()[1:]))
            rows = [
                row for _, (start, end) in sorted(zip(numbers, bounds)) for row in range(start, end)
            ]
            tensors = {name: tensor[rows] for name, tensor in tensors.items()}
        return tensors


class MainBranchHarness(RL2Harness):
    """Harness for RL2's main branch."""

    version = "main branch"  # type: ignore[assignment]
    # gem's critic per turn supports the release only
    adapter = replace(ADAPTER, capabilities=replace(ADAPTER.capabilities, critic_values=False))

    def train(self, case: Case) -> list[TrainedSequence]:
        with MainBranchRun(case) as run:
            return in_order(sequences_in([run.batch()]), [case.episodes])[0]

    def gradient(self, case: Case) -> Mapping[str, Any]:
        with MainBranchRun(case) as run:
            actor = GradientActor(run.settings.actor, True)
            actor.ppo_update(run.batch(), 1)
            return actor.gradient

    def play(self, case: PlayedCase) -> list[Episode]:
        def ask(router_url: str) -> Any:
            async def generate(ids: list[int], params: dict[str, Any]) -> Any:
                return scripted_response(ids, params, self.end_id)

            return generate

        with MainBranchRun(GemConfig(**case.config)) as run:
            with patched(main_branch, "_ask", ask, "router_url"):
                rollout = Replay(run.settings.rollout, run.state)
                tensors, _ = rollout.batch(case.seeds, case.update + 1)
            episodes = run.state.ledger.find(tensors)
            run.state.close()
            # RL2 returns episodes in the order in which they end
            return [episodes[number] for number in sorted(episodes)]

    def ranks(self, case: Case, parts: Sequence[Sequence[Episode]]) -> list[list[TrainedSequence]]:
        scattered = start_ranks("main_branch_on_cpu", [case] * len(parts), GEM_RL2_RANK="1")
        return in_order([sequence for sequences in scattered for sequence in sequences], parts)


def rank(case: Case) -> list[TrainedSequence]:
    """Return the sequences that RL2's own scatter gives this rank."""
    with MainBranchRun(case) as run:
        return sequences_in(MainBranchActor(run.settings.actor, True)._scatter_data(run.batch()))
