"""Measure the terminal and MCP suites: episodes per minute with 32 concurrent episodes.

    python benchmarks/suites.py
    python benchmarks/suites.py --ids mcp:Files-v0 --episodes 320

The expert plays. Each id runs in a process of its own. Set-up is the time until the first 32
episodes have begun, with all servers started; teardown is the time from the last episode until the
process and everything it started have ended.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from gem_core import make, tasks_for
from gem_core.policies.players import ExpertPlayer
from gem_core.rollout.engine import Rollout

IDS = (
    "terminal:Any-v0-easy",
    "terminal:Any-v0-medium",
    "terminal:Any-v0-hard",
    "mcp:Sqlite-v0",
    "mcp:Postgres-v0",
    "mcp:Git-v0",
    "mcp:Files-v0",
    "mcp:Workplace-v0",
)


def measure(id: str, episodes: int, concurrency: int) -> dict[str, float]:
    """Play in this process; return seconds."""
    begin = time.monotonic()
    envs = [make(id) for _ in range(concurrency)]
    with ThreadPoolExecutor(concurrency) as pool:
        list(pool.map(lambda pair: pair[1].reset(seed=pair[0]), enumerate(envs)))
    started = time.monotonic()
    for env in envs:
        env.close()
    with Rollout(ExpertPlayer(), concurrency=concurrency) as rollout:
        played = rollout.run_batch(tasks_for(id, seeds=range(episodes)))
    solved = sum(bool(episode.success) for episode in played)
    if solved != episodes:
        bad = next(episode for episode in played if not episode.success)
        raise SystemExit(f"the expert solved {solved} of {episodes} episodes of {id}: {bad!r}")
    turns = sum(len(episode.turns) for episode in played)
    seconds = time.monotonic() - started
    return {"setup": started - begin, "play": seconds, "turns": turns / episodes}


def in_process(id: str, episodes: int, concurrency: int) -> dict[str, float]:
    """Play in a new process, and measure its teardown."""
    command = [sys.executable, __file__, "--ids", id, "--here"]
    command += ["--episodes", str(episodes), "--concurrency", str(concurrency)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    result: dict[str, float] = json.loads(process.stdout.readline())
    done = time.monotonic()
    if process.wait():
        raise SystemExit(f"{id} ended with status {process.returncode}")
    process.stdout.close()
    return {**result, "teardown": time.monotonic() - done}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ids", nargs="+", default=IDS)
    parser.add_argument("--episodes", type=int, default=96)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        print(json.dumps(measure(args.ids[0], args.episodes, args.concurrency)), flush=True)
        return
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.0f} before the run, {args.concurrency} concurrent")
    print("| Id | Episodes per minute | Turns | Set-up | Teardown |")
    print("|---|---|---|---|---|")
    for id in args.ids:
        r = in_process(id, args.episodes, args.concurrency)
        rate = 60 * args.episodes / r["play"]
        print(
            f"| `{id}` | {rate:.0f} | {r['turns']:.1f} | "
            f"{r['setup']:.1f} s | {r['teardown']:.1f} s |",
            flush=True,
        )


if __name__ == "__main__":
    main()
