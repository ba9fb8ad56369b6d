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
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from algorithms_model import fingerprint, load
from algorithms_plan import Run
from algorithms_training import Trainer, exclude_from_gc

from gem_core.errors import ConfigError

__all__ = ["Workers", "check_model_of_results", "train_all"]


@dataclass(frozen=True)
class Workers:
    """Settings of the worker processes."""

    model: Path
    work: Path
    out: Path
    workers: int
    """Number of processes."""
    lanes: int
    """Runs at a time in each. With more than one, the sampling is not seeded: the runs of a process
    share its random numbers. Result files have this number."""
    slots: int
    """Episodes at a time in each run."""
    room: int
    """Tokens in the micro-batches of all processes together."""
    context: int
    """Tokens of an episode."""
    deadline: float
    """Start no run after this time."""


def train_all(todo: Sequence[Run], settings: Workers) -> int:
    """Train runs in worker processes, and return the exit code: 1 if a run failed."""
    context = multiprocessing.get_context("spawn")
    runs = context.Queue()
    for run in todo:
        runs.put(run)
    settings = replace(settings, workers=min(settings.workers, len(todo)))
    workers = [
        context.Process(target=run_worker, args=(settings, runs)) for _ in range(settings.workers)
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
    failed = any(worker.exitcode for worker in workers)
    return 1 if failed or (missing and time.time() < settings.deadline) else 0


def run_worker(settings: Workers, runs: Any) -> None:
    """Take runs from a queue and train them, until the deadline; exit with 1 if a run failed."""
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

    async def train_lanes() -> list[bool]:
        return await asyncio.gather(*(run_lane(own, runs, settings, machine) for own in trainers))

    with suppress(KeyboardInterrupt):  # a terminal also sends it to the workers
        if not all(asyncio.run(train_lanes())):
            sys.exit(1)


async def run_lane(trainer: Trainer, runs: Any, settings: Workers, machine: dict[str, Any]) -> bool:
    """Train one run after the other, and write the result of each; skip runs that fail.

    Returns whether none failed.
    """
    good = True
    while time.time() < settings.deadline:
        try:
            run = runs.get(timeout=0.2)
        except queue.Empty:
            break
        try:
            check_model_of_results(settings.out, run, machine["model"])
            result = await trainer.train_run(run)
            exclude_from_gc()
            path = settings.out / run.path
            path.parent.mkdir(parents=True, exist_ok=True)
            scratch = path.with_suffix(f".{os.getpid()}")
            text = json.dumps({**result, **machine}, indent=None) + "\n"
            scratch.write_text(text, encoding="utf-8")
            scratch.rename(path)
            print(f"{run.name}: {_described(result, settings.lanes)}", flush=True)
        except Exception as error:  # noqa: BLE001 - the others continue; this can be run again
            reason = error if isinstance(error, ConfigError) else traceback.format_exc()
            print(f"{run.name} failed: {reason}", file=sys.stderr, flush=True)
            good = False
            if not _gpu_works():
                print("error: the GPU does not work in this process", file=sys.stderr, flush=True)
                break
    return good


def _described(result: dict[str, Any], lanes: int) -> str:
    """Describe a result in one line; the clock is only right without other lanes."""
    e, c = result["evaluation"], result["clock"]
    # the first updates compile and capture graphs
    updates = 60 / median(result["curve"].get("seconds", [float("inf")]))
    text = (
        f"success {e['success']:.1%}, return {e['return']:.3f}, {e['turns']:.1f} turns; "
        f"{result['seconds']:.0f} s, {updates:.0f} updates/min"
    )
    if lanes > 1:
        return text
    parts = ("generation", "environment", "update")
    total = max(sum(c[part] for part in parts), 1e-9)
    shares = ", ".join(f"{part} {c[part] / total:.0%}" for part in parts)
    return f"{text}, {c['tokens'] / max(c['generation'], 1e-9):.0f} tokens/s, time: {shares}"


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
