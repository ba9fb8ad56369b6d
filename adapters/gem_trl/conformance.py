"""Conformance: golden episodes through the real GRPOTrainer: its batch, our advantages in its place for them, its loss."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gem_core.adapter_kit.conformance.golden import Case, failed_episode
from gem_core.adapter_kit.conformance.harness import TrainedSequence
from gem_core.errors import GemError
from gem_core.policies.tiny import load_tiny
from gem_core.types import Episode
from gem_trl import ADAPTER
from gem_trl.config import GemConfig
from gem_trl.rollout import GemRollout

__all__ = ["TRLHarness", "harness"]


class _Replay(GemRollout):
    """A rollout function that plays nothing: it hands over episodes that exist."""

    episodes: Sequence[Episode] = ()

    def play(self, prompts: list[Any], trainer: Any, renderer: Any) -> list[Episode]:
        return list(self.episodes)


class TRLHarness:
    """One real trainer on the tiny model, on the CPU, in float32."""

    adapter = ADAPTER
    carries = frozenset({"logprobs", "total"})

    def __init__(self, **config: Any) -> None:
        self.version = version("trl")
        self.config = config
        self._trainer: Any = None

    def train(self, case: Case) -> list[TrainedSequence]:
        return self._rows(*self._batch(case, case.episodes))

    def gradient(self, case: Case) -> Mapping[str, Any]:
        out, _ = self._batch(case, case.episodes)
        trainer = self._trainer
        trainer.model.train()
        trainer.model.zero_grad(set_to_none=True)
        trainer.current_gradient_accumulation_steps = 1
        trainer._compute_loss(trainer.model, out).backward()
        return {name: p.grad.detach().clone() for name, p in trainer.model.named_parameters() if p.grad is not None}

    def gradient_factor(self, case: Case) -> float:
        """`dapo` divides by the trained tokens of the whole batch: the canonical weighting."""
        return 1.0

    def ranks(self, case: Case, parts: Sequence[Sequence[Episode]]) -> list[list[TrainedSequence]]:
        """Two processes under accelerate and gloo, each with a trainer of its own and its part of the batch."""
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            port = _free_port()
            processes = []
            for rank, part in enumerate(parts):
                (work / f"in{rank}").write_bytes(pickle.dumps((case, list(part))))
                env = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(len(parts))}
                env |= {
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "PYTHONPATH": os.pathsep.join(sys.path),
                    "OMP_NUM_THREADS": "1",
                }
                command = [sys.executable, "-m", "gem_trl.conformance", str(work / f"in{rank}"), str(work / f"out{rank}")]
                processes.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
            said = [process.communicate(timeout=300)[0] for process in processes]
            for process, text in zip(processes, said):
                if process.returncode:
                    raise RuntimeError(f"a rank ended with {process.returncode}: {text[-2000:]}")
            return [pickle.loads((work / f"out{rank}").read_bytes()) for rank in range(len(parts))]

    def _batch(self, case: Case, episodes: Sequence[Episode]) -> tuple[dict[str, Any], int]:
        """What TRL's own code makes of the episodes, up to the input of its loss."""
        trainer = self._ready()
        trainer.gem_spec = replace(trainer.gem_spec, advantage=case.estimator, gamma=case.gamma, estimator_kwargs=case.arguments)
        played = [*episodes, failed_episode(99)] if len(episodes) % 2 else list(episodes)  # TRL wants whole groups of two
        trainer.rollout_func.episodes = played
        inputs = [dict(trainer.train_dataset[i]) for i in range(len(played))]
        trainer.model.train()
        return trainer._generate_and_score_completions(inputs), len(episodes)

    def _rows(self, out: Mapping[str, Any], count: int) -> list[TrainedSequence]:
        """TRL's tensors, padding taken off: prompts are padded left, completions right."""
        found = []
        logprobs = out.get("sampling_per_token_logps")
        size, accelerator = len(out["prompt_ids"]), self._trainer.accelerator
        logged = list(self._trainer._logs["rewards"]["episode_return"])[-size * accelerator.num_processes :]  # of all ranks
        rewards = logged[accelerator.process_index * size :][:size]
        for i in range(count):
            prompt = out["prompt_ids"][i][out["prompt_mask"][i].bool()].tolist()
            here = out["completion_mask"][i].bool()
            nothing = [0] * len(prompt)
            found.append(
                TrainedSequence(
                    ids=prompt + out["completion_ids"][i][here].tolist(),
                    mask=nothing + out["tool_mask"][i][here].tolist(),
                    advantages=[0.0] * len(prompt) + out["advantages"][i][here].tolist(),
                    logprobs=[0.0] * len(prompt) + logprobs[i][here].tolist() if logprobs is not None else None,
                    total=rewards[i],
                )
            )
        return found

    def _ready(self) -> Any:
        if self._trainer is None:
            from trl import GRPOConfig

            from gem_trl.advantage import GemGRPOTrainer

            model, tokenizer = load_tiny()
            spec = GemConfig("game:GuessTheNumber-v0-easy", seeds=64)
            spec.__dict__["rollout_func"] = _Replay(spec)
            args = GRPOConfig(
                output_dir=tempfile.mkdtemp(),
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                per_device_train_batch_size=8,
                num_generations=2,
                max_completion_length=256,
                report_to="none",
                disable_tqdm=True,
                **self.config,
            )
            self._trainer = GemGRPOTrainer(model=model.float(), args=args, processing_class=tokenizer, **spec.arguments())
        return self._trainer


def harness() -> TRLHarness:
    """What `gem-rl conformance trl` runs."""
    return TRLHarness()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _rank() -> None:
    """One of the processes of `ranks`."""
    import torch.distributed

    case, part = pickle.loads(Path(sys.argv[1]).read_bytes())
    try:
        own = TRLHarness()
        Path(sys.argv[2]).write_bytes(pickle.dumps(own._rows(*own._batch(case, part))))
        torch.distributed.barrier()  # whoever leaves while another still talks, or without taking leave, may be aborted
        torch.distributed.destroy_process_group()
    except GemError as refused:
        raise SystemExit(f"refused: {refused}") from refused


if __name__ == "__main__":
    _rank()
