"""Harness: how an adapter drives its framework with given episodes, for the conformance kit."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from gem_core.adapter_kit.conformance.golden import Case
from gem_core.adapter_kit.declaration import Adapter
from gem_core.errors import GemError
from gem_core.types import Episode

__all__ = ["CARRIED", "Harness", "TrainedSequence", "free_port", "run_rank", "start_ranks"]

CARRIED = ("logprobs", "rewards", "total")


@dataclass(frozen=True)
class TrainedSequence:
    """One sequence as the framework's loss sees it, padding removed."""

    ids: Sequence[int]
    """Prompt and response."""
    mask: Sequence[int]
    """1 for each id whose log-probability is trained, aligned with `ids`."""
    advantages: Sequence[float]
    """Aligned with `ids`."""
    logprobs: Sequence[float] | None = None
    """The sampler's, aligned with `ids`: 0.0 where no token was sampled; a masked turn has its own, or 0.0."""
    rewards: Sequence[float] | None = None
    """Token rewards, aligned with `ids`."""
    total: float | None = None
    """The reward of the whole sequence, one number; None or NaN for a failed episode only."""


class Harness(ABC):
    """Drives a framework's own batch, advantage and loss code with given episodes."""

    adapter: ClassVar[Adapter]
    carries: ClassVar[frozenset[str]]
    """Which of `logprobs`, `rewards` and `total` the framework's batch carries: every trained sequence must have them. One of
    `rewards` and `total` is needed: without either, nothing shows that the reward arrived."""
    sequence_per_turn: ClassVar[bool] = False
    """Whether the framework trains every turn as a sequence of its own, with its whole prompt before it."""
    padding_has_logprobs: ClassVar[bool] = False
    """Whether a padding sequence has the trainer's own logprobs instead of 0.0."""

    @property
    def version(self) -> str:
        """The installed version of the framework."""
        return version(self.adapter.distribution)

    @abstractmethod
    def train(self, case: Case) -> list[TrainedSequence]:
        """The sequences of a batch, in the order of the episodes, padding sequences for failed episodes included."""

    @abstractmethod
    def gradient(self, case: Case) -> Mapping[str, Any]:
        """The gradient of the framework's own loss on the tiny model, by parameter name, as torch tensors."""

    def gradient_factor(self, case: Case) -> float:
        """The framework's loss, as a multiple of the canonical one, under one update over the whole batch."""
        return 1.0

    @abstractmethod
    def ranks(self, case: Case, parts: Sequence[Sequence[Episode]]) -> list[list[TrainedSequence]]:
        """The sequences of each rank when the batch is split over real processes."""


def start_ranks(
    module: str, inputs: Sequence[Any], *, timeout: float = 300.0, **env: str
) -> list[Any]:
    """Run `python -m module IN OUT` once per input, as the ranks of one process group, and return what each wrote. The module
    calls `run_rank` as its program."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        shared = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OMP_NUM_THREADS": "1",
            "WORLD_SIZE": str(len(inputs)),
            **env,
        }
        processes = []
        for rank, given in enumerate(inputs):
            (work / f"in{rank}").write_bytes(pickle.dumps(given))
            own = {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            command = [
                sys.executable,
                "-m",
                module,
                str(work / f"in{rank}"),
                str(work / f"out{rank}"),
            ]
            processes.append(
                subprocess.Popen(
                    command, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                )
            )
        printed = [process.communicate(timeout=timeout)[0] for process in processes]
        for process, text in zip(processes, printed):
            if process.returncode:
                raise RuntimeError(f"a rank ended with {process.returncode}: {text[-2000:]}")
        return [pickle.loads((work / f"out{rank}").read_bytes()) for rank in range(len(inputs))]


def run_rank(work: Callable[[Any], Any]) -> None:
    """The program of one rank: read the input, write what `work` makes of it, and leave together with the others."""
    given = pickle.loads(Path(sys.argv[1]).read_bytes())
    try:
        Path(sys.argv[2]).write_bytes(pickle.dumps(work(given)))
    except GemError as error:
        raise SystemExit(f"rejected: {error}") from error
    import torch.distributed

    if torch.distributed.is_initialized():
        torch.distributed.barrier()  # a rank that exits early aborts the others
        torch.distributed.destroy_process_group()


def free_port() -> int:
    """A TCP port that is free on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
