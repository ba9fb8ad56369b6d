"""Compare where CPU-heavy environments run: in threads, in processes, on Ray hosts.

    python benchmarks/execution.py  # needs the extra ray
    python benchmarks/execution.py --out benchmarks/results/execution.json

Every step of the environment computes 50 ms in pure Python, as simulators and graders do. 64
episodes run at once, through the same engine and `GemConfig(execution=..., hosts=...)` as in a
trainer. Threads share one interpreter, so their steps take turns. CPU seconds include all child
processes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gem_trl
from gem_core import Env, RandomPlayer, register
from gem_core.adapter_kit.trainer_rollout import TrainerRollout
from gem_core.training.config import TrainingConfig

ENV = "benchmark:Busy-v0"


@dataclass
class Config(TrainingConfig):
    """The fields that all trainers share."""

    adapter = gem_trl.ADAPTER


class Busy(Env):
    """Compute for `seconds` in each of `turns` steps."""

    def __init__(self, turns: int = 10, seconds: float = 0.05) -> None:
        self.turns, self.seconds = turns, seconds

    def on_reset(self, options: Any) -> Any:
        """Return nothing to read."""
        return "go", {}

    def on_step(self, action: str) -> Any:
        """Count until the time of this thread is used."""
        start = time.thread_time()
        while time.thread_time() - start < self.seconds:
            sum(range(200))
        over = self.turn + 1 == self.turns
        return "go on", float(over), over, False, {}

    def sample_action(self) -> str:
        """Return any text."""
        return "count"


def measure(execution: str, hosts: int | None, episodes: int, turns: int) -> dict[str, Any]:
    """Play the episodes once to start everything, then once more with the clock running."""
    config = Config(
        ENV, seeds=episodes, execution=execution, hosts=hosts, env_kwargs={"turns": turns}
    )
    tasks = [config.task(seed) for seed in config.train_seeds]
    began = time.monotonic()
    with TrainerRollout(config, policy=RandomPlayer(), concurrency=episodes) as rollout:
        short = Config(ENV, seeds=episodes, execution=execution, hosts=hosts)
        rollout.run_batch([short.task(seed) for seed in short.train_seeds[:1]])
        first = rollout.run_batch(tasks)
        started = time.monotonic()
        cpu = cpu_seconds()
        played = rollout.run_batch(tasks)
        wall = time.monotonic() - started
        cpu = cpu_seconds() - cpu
    failed = [e for e in [*first, *played] if e.failed]
    if failed:
        raise SystemExit(f"{len(failed)} episodes failed: {failed[0].failure}")
    return {
        "execution": execution,
        "hosts": hosts,
        "first_seconds": round(started - began, 2),
        "wall_seconds": round(wall, 2),
        "cpu_seconds": round(cpu, 1),
        "steps_per_second": round(episodes * turns / wall, 1),
    }


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of all its living descendants."""
    parents, spent = {}, {}
    for folder in Path("/proc").iterdir():
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        pid = int(folder.name) if folder.name.isdigit() else -1
        parents[pid], spent[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    own = {os.getpid()}
    while children := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= children
    return sum(spent.get(pid, 0) for pid in own) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure all kinds of execution and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--episodes", type=int, default=64, help="episodes at once")
    parser.add_argument("--turns", type=int, default=10, help="steps of each episode")
    parser.add_argument("--hosts", type=int, default=os.cpu_count(), help="Ray hosts")
    parser.add_argument("--out", type=Path, help="also write the figures to this JSON file")
    args = parser.parse_args()
    register(ENV, Busy)
    cores = len(os.sched_getaffinity(0))
    print(f"{args.episodes} episodes at once, {args.turns} steps of 50 ms each, {cores} cores\n")
    columns = "start and first batch (s) | second batch (s) | CPU (s) | steps/s | speed-up"
    print(f"| execution | {columns} |")
    print("|---|---|---|---|---|---|")
    rows = []
    for execution, hosts in (("declared", None), ("process", None), ("ray", args.hosts)):
        rows.append(measure(execution, hosts, args.episodes, args.turns))
        row = rows[-1]
        name = f"`ray`, {hosts} hosts" if hosts else f"`{execution}`"
        print(
            f"| {name} | {row['first_seconds']} | {row['wall_seconds']} | {row['cpu_seconds']} "
            f"| {row['steps_per_second']} | {rows[0]['wall_seconds'] / row['wall_seconds']:.1f}x |",
            flush=True,
        )
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        facts = {"cores": cores, "python": platform.python_version(), "episodes": args.episodes}
        args.out.write_text(
            json.dumps({**facts, "turns": args.turns, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
