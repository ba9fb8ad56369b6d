"""The worker processes of `algorithms.py`, which train runs from a queue."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import queue
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from algorithms_model import fingerprint, load
from algorithms_plan import Run
from algorithms_training import Trainer

from gem_core.errors import ConfigError

__all__ = ["Worker", "check_model_of_results", "train_all"]


@dataclass(frozen=True)
class Worker:
    """Settings of the processes that train runs."""

    model: Path
    work: Path
    out: Path
    workers: int
    """Number of processes."""
    lanes: int
    """Runs at a time in each."""
    slots: int
    room: int
    context: int
    deadline: float
    """Start no run after this time."""


def train_all(todo: Sequence[Run], settings: Worker) -> int:
    """Train runs in worker processes, and return the exit code."""
    context = multiprocessing.get_context("spawn")
    runs = context.Queue()
    for run in todo:
        runs.put(run)
    workers = [
        context.Process(target=run_worker, args=(settings, runs))
        for _ in range(min(settings.workers, len(todo)))
    ]
    began = time.time()
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            worker.join()
    except KeyboardInterrupt:
        for worker in workers:
            worker.terminate()
        print("interrupted; finished runs are kept", file=sys.stderr)
        return 130
    missing = sum(not (settings.out / run.path).is_file() for run in todo)
    print(f"{len(todo) - missing} runs in {time.time() - began:.0f} s, {missing} missing")
    return 0 if not missing or time.time() > settings.deadline else 1


def run_worker(settings: Worker, runs: Any) -> None:
    """Take runs from a queue and train them, until the deadline."""
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    loaded, tokenizer = load(str(settings.model))
    trainers = Trainer.several(
        settings.lanes,
        loaded,
        tokenizer,
        settings.work,
        settings.slots,
        settings.room // settings.workers,
        settings.context,
    )
    machine = {
        "model": fingerprint(loaded),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__,
        "workers": settings.workers,
        "lanes": settings.lanes,
        "slots": settings.slots,
        "room": settings.room,
        "context": settings.context,
    }

    async def train_lanes() -> None:
        await asyncio.gather(*(run_lane(own, runs, settings, machine) for own in trainers))

    with suppress(KeyboardInterrupt):  # a terminal also sends it to the workers
        asyncio.run(train_lanes())


async def run_lane(trainer: Trainer, runs: Any, settings: Worker, machine: dict[str, Any]) -> None:
    """Train one run after the other, and write the result of each."""
    while time.time() < settings.deadline:
        try:
            run = runs.get(timeout=0.2)
        except queue.Empty:
            return
        try:
            check_model_of_results(settings.out, run, machine["model"])
        except ConfigError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            return
        try:
            result = await trainer.train_run(run)
        except Exception:  # noqa: BLE001 - the other runs continue; this one can be run again
            print(f"{run.name} failed:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            if not _gpu_works():
                print("error: the GPU does not work in this process", file=sys.stderr, flush=True)
                return
            continue
        path = settings.out / run.path
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(f".{os.getpid()}")
        scratch.write_text(json.dumps({**result, **machine}, indent=None) + "\n", encoding="utf-8")
        scratch.rename(path)
        e, c = result["evaluation"], result["clock"]
        parts = ("generation", "environment", "update")
        total = max(sum(c[part] for part in parts), 1e-9)
        # the first updates compile and capture graphs
        updates = 60 / median(result["curve"].get("seconds", [float("inf")]))
        tokens = c["tokens"] / max(c["generation"], 1e-9)
        print(
            f"{run.name}: success {e['success']:.1%}, return {e['return']:.3f}, "
            f"{e['turns']:.1f} turns; {result['seconds']:.0f} s, {updates:.0f} updates/min, "
            f"{tokens:.0f} tokens/s, time: "
            + ", ".join(f"{part} {c[part] / total:.0%}" for part in parts),
            flush=True,
        )


def _gpu_works() -> bool:
    """Return whether the process can go on: after some CUDA errors, all later calls fail."""
    if not torch.cuda.is_available():
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def check_model_of_results(results: Path, run: Run, fingerprint: str) -> None:
    """Raise `ConfigError` if the study of a run has results that started from other weights."""
    for path in sorted((results / run.path).parent.glob("*.json")):
        other = json.loads(path.read_text(encoding="utf-8")).get("model")
        if other not in (None, fingerprint):
            raise ConfigError(
                f"{path} started from the weights {other}, this run would start from "
                f"{fingerprint}; use the same model, or move the results of the other one away"
            )
