"""Conformance: golden episodes through the real RL2: its rollout, its tensors, our advantages in its place for them, its loss."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import RL2.trainer.ppo as rl2_ppo
import RL2.workers.rollout as rl2_rollout
import torch.distributed as dist
import wandb
from omegaconf import OmegaConf
from torch.distributed.device_mesh import init_device_mesh

from gem_core.adapter_kit.conformance.golden import Case
from gem_core.adapter_kit.conformance.harness import TrainedSequence
from gem_core.errors import GemError
from gem_core.policies.tiny import tiny_model_path
from gem_core.types import Episode
from gem_rl2 import ADAPTER
from gem_rl2.advantage import gem_advantages
from gem_rl2.config import GemConfig, compose, prepare_config
from gem_rl2.convert import rows_of
from gem_rl2.interface import replaced, which_rl2
from gem_rl2.plain import PlainActor, without_cuda
from gem_rl2.rollout import GemRollout, Plays

__all__ = ["RL2Harness", "harness"]

MAIN = which_rl2() == "main"


class _Replay(Plays):
    """Plays nothing: hands over the episode that has the number of a start."""

    episodes: Sequence[Episode] = ()

    async def episode(self, number: int, seed: int, *args: Any, **kwargs: Any) -> Episode:
        return self.episodes[seed]


class _Rollout(GemRollout):  # type: ignore[misc]
    """RL2's rollout without servers."""

    def __init__(self, config: Any, plays: _Replay) -> None:
        from transformers import AutoTokenizer

        self.config, self.plays = config, plays
        self.tokenizer = AutoTokenizer.from_pretrained(config.server_args.model_path)
        self.worker_url = self.router_url = "http://nowhere"
        self.device_mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("dp", "tp"))
        self.train_sampling_params: dict[str, Any] = {}
        if MAIN:
            self._prepare_environment()

    def batch(self) -> tuple[dict[str, Any], Any]:
        """The tensors RL2's own rollout makes of the episodes; on other ranks than the first, (None, None)."""
        rows = [{"extra_info": {"seed": number}} for number in range(len(self.plays.episodes))]
        if not MAIN:
            self._loop = asyncio.new_event_loop()
            with replaced(rl2_rollout, "make_request", lambda *args: None), closing(self._loop):
                return self(rows, True, 1)  # type: ignore[no-any-return]
        self.config.train.prompts_per_rollout = len(rows)
        groups = [rl2_rollout.SampleGroup(self.config.train, self.tokenizer, row) for row in rows]
        self.train_dataloader = lambda size: groups
        with replaced(rl2_rollout, "async_request", _nothing):
            return asyncio.run(self(True, 1))  # type: ignore[no-any-return]


class _Actor(PlainActor):
    """RL2's actor, up to its gradient."""

    gradient: dict[str, Any]

    def optimizer_step(self) -> float:
        self.gradient = {n: p.grad.detach().clone() for n, p in self.model.named_parameters() if p.grad is not None}
        return 0.0

    _optimizer_step = optimizer_step


class RL2Harness:
    """RL2's code on the tiny model, in float32, without a server; on the CPU where there is no GPU."""

    adapter = ADAPTER
    carries = frozenset({"logprobs", "rewards"})

    def __init__(self) -> None:
        try:
            self.version = version("rl-square") + (", main branch" if MAIN else "")
        except PackageNotFoundError:
            self.version = "main branch"

    def train(self, case: Case) -> list[TrainedSequence]:
        with self._ready(case) as ready:
            return _in_order(_rows([ready.batch()]), [case.episodes])[0]

    def gradient(self, case: Case) -> Mapping[str, Any]:
        with self._ready(case) as ready:
            actor = _Actor(ready.config.actor, True)
            update = actor.ppo_update if MAIN else actor.update
            update(ready.batch(), 1)
            return actor.gradient

    def gradient_factor(self, case: Case) -> float:
        """`avg_level=token` divides by the trained tokens of the whole batch: the canonical weighting."""
        return 1.0

    def ranks(self, case: Case, parts: Sequence[Sequence[Episode]]) -> list[list[TrainedSequence]]:
        """Two processes under gloo. RL2 plays and credits on one rank and deals the rows out by length with its own scatter, so
        that they are put back to the parts they belong to."""
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            (work / "case").write_bytes(pickle.dumps(case))
            port = _free_port()
            processes = []
            for rank in range(len(parts)):
                env = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(len(parts))}
                env |= {
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "PYTHONPATH": os.pathsep.join(sys.path),
                    "OMP_NUM_THREADS": "1",
                }
                command = [sys.executable, "-m", "gem_rl2.conformance", str(work / "case"), str(work / f"out{rank}")]
                processes.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
            said = [process.communicate(timeout=300)[0] for process in processes]
            for process, text in zip(processes, said):
                if process.returncode:
                    raise RuntimeError(f"a rank ended with {process.returncode}: {text[-2000:]}")
            dealt = [pickle.loads((work / f"out{rank}").read_bytes()) for rank in range(len(parts))]
        if not all(any(any(row.mask) for row in rows) for rows in dealt):
            raise RuntimeError(f"RL2 left a rank without a trained row: {[len(rows) for rows in dealt]}")
        return _in_order([row for rank in dealt for row in rank], parts)

    def _ready(self, case: Case) -> _Ready:
        return _Ready(case)


class _Ready(ExitStack):
    """RL2 set up for one case: process group, configuration, rollout."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.spec = GemConfig(
            "game:GuessTheNumber-v0-easy",
            seeds=64,
            advantage=case.estimator,
            gamma=case.gamma,
            estimator_kwargs=case.arguments,
            max_turn_tokens=16,
        )
        self.plays = _Replay(self.spec)
        self.plays.episodes = case.episodes

    def __enter__(self) -> _Ready:
        super().__enter__()
        _start_gloo()
        folder = self.enter_context(tempfile.TemporaryDirectory())
        section = "rollout.train" if MAIN else "train_data"
        given = [
            f"actor.model_name={tiny_model_path()}",
            "actor.max_length_per_device=4096",
            f"{section}.prompts_per_rollout=8",
            f"{section}.responses_per_prompt=2",  # which estimators with groups ask for; the episodes say what a group is
            f"trainer.save_dir={folder}",
        ]
        self.config = compose(given)
        prepare_config(self.config, self.spec, folder)
        OmegaConf.resolve(self.config)
        section_of_data = self.config.rollout.train if MAIN else self.config.rollout
        section_of_data.responses_per_prompt, section_of_data.dynamic_filtering = 1, False
        self.enter_context(without_cuda())
        self.enter_context(replaced(wandb, "log", lambda *args, **kwargs: None))
        self.enter_context(gem_advantages(self.plays))
        return self

    def batch(self) -> Any:
        """RL2's batch with advantages; None on other ranks than the first."""
        tensors, cu_seqs = _Rollout(self.config.rollout, self.plays).batch()
        if dist.get_rank() == 0:
            rl2_ppo.compute_advantages(self.config if MAIN else self.config.adv, tensors, cu_seqs, 1)
        return tensors

    def dealt(self) -> list[dict[str, Any]]:
        """What RL2's own scatter gives this rank."""
        actor = PlainActor(self.config.actor, True)
        if MAIN:
            return actor._scatter_data(self.batch())  # type: ignore[no-any-return]
        from RL2.utils.sequences import tensor_dict_to_minibatches

        return tensor_dict_to_minibatches(actor, self.batch(), False, False)  # type: ignore[no-any-return]


def harness() -> RL2Harness:
    """What `gem-rl conformance rl2` runs."""
    return RL2Harness()


def _rows(batches: Sequence[Mapping[str, Any]]) -> list[TrainedSequence]:
    """RL2's tensors, padding taken off and its shift by one undone: a row's first token stands in `states` only."""
    found = []
    for batch in batches:
        for i, length in enumerate((batch["eos_mask"].argmax(-1) + 1).tolist()):
            if not batch["eos_mask"][i].any():
                continue  # RL2's own padding row

            def tail(name: str, row: int = i, end: int = length, of: Mapping[str, Any] = batch) -> list[Any]:
                return list(of[name][row, :end].tolist())

            found.append(
                TrainedSequence(
                    ids=[*tail("states"), tail("actions")[-1]],
                    mask=[0, *tail("action_mask")],
                    advantages=[0.0, *tail("advantages")],
                    logprobs=[0.0, *tail("llm_logps")],
                    rewards=[0.0, *tail("rewards")],
                )
            )
    return found


def _in_order(rows: Sequence[TrainedSequence], parts: Sequence[Sequence[Episode]]) -> list[list[TrainedSequence]]:
    """The rows of each part's episodes, in their order: RL2 takes groups as they end, and deals rows out by length. Rows that
    belong to none stand behind the last."""
    left = list(rows)
    found: list[list[TrainedSequence]] = []
    for part in parts:
        found.append([])
        for view in (view for episode in part for view in rows_of(episode, 0)):
            index = next((i for i, row in enumerate(left) if list(row.ids) == list(view.ids)), None)
            if index is not None:
                found[-1].append(left.pop(index))
    found[-1] += left
    return found


async def _nothing(*args: Any, **kwargs: Any) -> None:
    """Answers a request to a server that is not there."""


def _start_gloo() -> None:
    if not dist.is_initialized():
        for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}.items():
            os.environ.setdefault(name, value)
        dist.init_process_group("gloo")
        if MAIN:
            import RL2.utils.communication as communication

            communication.GLOO_GROUP = dist.group.WORLD


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _rank() -> None:
    """One of the processes of `ranks`."""
    case = pickle.loads(Path(sys.argv[1]).read_bytes())
    try:
        with _Ready(case) as ready:
            Path(sys.argv[2]).write_bytes(pickle.dumps(_rows(ready.dealt())))
        dist.barrier()  # whoever leaves while another still talks, or without taking leave, may be aborted
        dist.destroy_process_group()
    except GemError as refused:
        raise SystemExit(f"refused: {refused}") from refused


if __name__ == "__main__":
    _rank()
