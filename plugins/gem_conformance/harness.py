"""Harness: runs golden episodes through a framework's own code, for the conformance kit."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from gem_conformance.golden import END, Case
from gem_conformance.played import PlayedCase
from gem_core.adapter_kit.declaration import Adapter
from gem_core.adapter_kit.ports import free_port
from gem_core.errors import GemError
from gem_core.types import Episode

__all__ = [
    "CARRIED",
    "Harness",
    "TrainedSequence",
    "run_rank",
    "start_ranks",
    "start_ranks_of_batches",
]

CARRIED = ("logprobs", "rewards", "total")


@dataclass(frozen=True)
class TrainedSequence:
    """One sequence as the framework's loss sees it, without padding."""

    ids: Sequence[int]
    """Prompt and response."""
    mask: Sequence[int]
    """1 for each id whose log-probability is trained, aligned with `ids`."""
    advantages: Sequence[float]
    """Aligned with `ids`."""
    logprobs: Sequence[float] | None = None
    """The sampler's, aligned with `ids`; 0.0 for unsampled tokens, optional for masked turns."""
    rewards: Sequence[float] | None = None
    """Token rewards, aligned with `ids`."""
    total: float | None = None
    """The reward of the sequence; None or NaN only for a failed episode."""


class Harness(ABC):
    """Runs episodes through a framework's own batch, advantage and loss code."""

    adapter: ClassVar[Adapter]
    carries: ClassVar[frozenset[str]]
    """Which of `logprobs`, `rewards` and `total` every trained sequence has. `rewards` or `total`
    is required, because the kit checks that rewards arrive."""
    sequence_per_turn: ClassVar[bool] = False
    """Whether the framework trains every turn as a separate sequence, with its full prompt."""
    max_context: ClassVar[int] = 2048
    """The longest sequence that the framework plays with the tiny model."""
    end_id: ClassVar[int] = END
    """The token that ends a turn of the scripted engine."""
    padding_has_logprobs: ClassVar[bool] = False
    """Whether a padding sequence has logprobs of the trainer instead of 0.0."""
    device: str = "cpu"
    """Where the framework's loss runs: `cpu` or `cuda`."""
    bfloat16: bool = False
    """Whether the model computes in bfloat16 instead of float32."""
    only_cpu: ClassVar[bool] = True
    """Whether the harness runs on the CPU in float32 only, and ignores the two above."""

    @property
    def version(self) -> str:
        """The installed version of the framework."""
        return version(self.adapter.distribution)

    @abstractmethod
    def train(self, case: Case) -> list[TrainedSequence]:
        """Return the sequences of a batch in the order of its episodes, with padding sequences."""

    @abstractmethod
    def gradient(self, case: Case) -> Mapping[str, Any]:
        """Return the gradient of the framework's loss on the tiny model, by parameter name."""

    def gradient_factor(self, case: Case) -> float:
        """Return the framework's loss as a multiple of the canonical loss."""
        return 1.0

    @abstractmethod
    def ranks(self, case: Case, parts: Sequence[Sequence[Episode]]) -> list[list[TrainedSequence]]:
        """Return the sequences of each rank, each in its own process."""

    @abstractmethod
    def play(self, case: PlayedCase) -> list[Episode]:
        """Play a batch with the adapter's own rollout, and return its episodes in order.

        Only the framework's engine is replaced: `played.answer` generates each turn.
        """

    def ranks_of_batches(
        self, batches: Sequence[tuple[Case, Sequence[Sequence[Episode]]]]
    ) -> list[list[list[TrainedSequence]]]:
        """Return `ranks` of each batch. Override it to start slow processes only once."""
        return [self.ranks(case, parts) for case, parts in batches]


_RUN = (  # as `-m`, which would import modules from the working folder
    "import sys; sys.path = [p for p in sys.path if p]; "
    "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def start_ranks(
    module: str, inputs: Sequence[Any], *, timeout: float = 300.0, **env: str
) -> list[Any]:
    """Run `module`, which calls `run_rank`, as one rank per input; return their outputs."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        shared = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
            "OMP_NUM_THREADS": "1",
            "WORLD_SIZE": str(len(inputs)),
            **env,
        }
        processes, logs = [], [work / f"log{rank}" for rank in range(len(inputs))]
        for rank, value in enumerate(inputs):
            source, target = work / f"in{rank}", work / f"out{rank}"
            source.write_bytes(pickle.dumps(value))
            with logs[rank].open("w") as log:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-c", _RUN, module, str(source), str(target)],
                        env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )
        try:
            for process in processes:
                process.wait(timeout)
                timeout = min(timeout, 60.0)  # the ranks end together
        except subprocess.TimeoutExpired:
            pass  # gloo sometimes hangs at exit, after the output is written
        finally:
            for process in processes:
                process.kill()
                process.wait()
        outputs = [work / f"out{rank}" for rank in range(len(inputs))]
        failed = [
            f"rank {rank} exited with {process.returncode}: "
            f"{logs[rank].read_text(errors='replace')[-2000:]}"
            for rank, process in enumerate(processes)
            if process.returncode > 0 or not outputs[rank].exists()
        ]
        if failed:
            raise RuntimeError("\n".join([*failed, "(-9: killed after the timeout)"]))
        return [pickle.loads(output.read_bytes()) for output in outputs]


def start_ranks_of_batches(
    module: str, batches: Sequence[tuple[Case, Sequence[Sequence[Episode]]]]
) -> list[list[list[TrainedSequence]]]:
    """Start `module` once per rank and return `Harness.ranks` of each batch.

    A rank gets a list of (case, its episodes) and returns the sequences of each.
    """
    ranks = range(len(batches[0][1]))
    work = [[(case, list(parts[rank])) for case, parts in batches] for rank in ranks]
    return [list(batch) for batch in zip(*start_ranks(module, work))]


def run_rank(work: Callable[[Any], Any]) -> None:
    """Run as the program of one rank: read the input, write `work(input)`, exit with the others."""
    value = pickle.loads(Path(sys.argv[1]).read_bytes())
    try:
        Path(sys.argv[2]).write_bytes(pickle.dumps(work(value)))
    except GemError as error:
        raise SystemExit(f"rejected: {error}") from error
    import torch.distributed

    if torch.distributed.is_initialized():
        torch.distributed.barrier()  # a rank that exits early aborts the others
        torch.distributed.destroy_process_group()
