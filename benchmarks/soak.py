"""Soak: play many episodes of which a tenth fails in every way, and count what is lost or leaked.

    python benchmarks/soak.py                    # 100,000 episodes, minutes
    python benchmarks/soak.py --episodes 1500    # 10 seconds

The program plays in a child process. Afterwards it looks for processes and folders that the child
left. It exits with status 1 if anything was lost, silently wrong, or leaked.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import json
import logging
import os
import platform
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

CONCURRENCY = 64
STEP_DEADLINE = 2.0
MOST_MB = 200
"""The allowed growth of the resident memory."""
MOST_LATE = 0.01
"""The allowed share of healthy episodes that miss the deadline: on a busy machine, some do."""
SHARES = {
    "crash": 0.020,
    "crash in reset": 0.010,
    "nonsense": 0.018,
    "BaseException": 0.012,
    "error without a text": 0.006,
    "hang": 0.010,
    "slow close": 0.008,
    "policy error": 0.004,
    "killed worker": 0.005,
    "killed server": 0.005,
    "hanging program": 0.002,
}
"""The share of the episodes with each fault: a tenth in all."""
STILL_VALID = frozenset({"hanging program"})
"""The model's own fault: the tool reports it, and the episode goes on."""
HEALTHY = {"tool": 0.005, "served": 0.010, "process": 0.005}
"""The share of the episodes without a fault that use a tool, a server or a process."""
HOSTS = ("Inline", "OnThread", "Async")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(play(args.episodes)))
        return 0
    results = play_in_child(args.episodes)
    print(report(results))
    if args.out:
        args.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 1 if problems(results) else 0


# The parent: what is left of a child that has ended?


def play_in_child(episodes: int) -> dict[str, Any]:
    """Play in a child with an empty folder for temporary files; add what it left behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: adopt its orphans
    with tempfile.TemporaryDirectory(prefix="gem-soak-") as folder:
        os.chmod(folder, 0o755)  # programs in the sandbox run as other users
        command = [sys.executable, __file__, "--child", "--episodes", str(episodes)]
        path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
        environment = {**os.environ, "TMPDIR": folder, "PYTHONPATH": path}
        child = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True)
        deadline = time.monotonic() + 15.0
        while (children(os.getpid()) or os.listdir(folder)) and time.monotonic() < deadline:
            time.sleep(0.2)
        results: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
        results["processes left"] = len(children(os.getpid()))
        results["folders left"] = len(os.listdir(folder))
    return results


def children(pid: int) -> list[int]:
    """Return the living children of a process."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(stat.parent.name))
    return found


# The child: play, count, and look at its own threads, descriptors and memory.


def play(episodes: int) -> dict[str, Any]:
    """Play the plan and return the counts."""
    from soak_worlds import Player, ServerProcess

    from gem_core import Limits, Rollout, register
    from gem_tools.sandbox.sandbox import Sandbox, SandboxLimits

    logging.getLogger("gem_core").setLevel(logging.CRITICAL)  # thousands of expected failures
    for name in (*HOSTS, "InProcess", "OnKilledServer"):
        register(f"soak:{name}", f"soak_worlds:{name}")
    ServerProcess().close()  # starts the fork server, which lives until the end
    sandbox = Sandbox(SandboxLimits(seconds=1.0), isolation="partial")
    before = resources()
    server = ServerProcess()
    limits = Limits(step_deadline=STEP_DEADLINE)
    faults = planned(episodes)
    counts = Count(faults)
    memory = Memory()
    started = time.monotonic()

    async def run(rollout: Rollout) -> None:
        tasks = (task(i, fault, server.url, sandbox) for i, fault in enumerate(faults))
        async with aclosing(rollout.stream(tasks)) as stream:
            async for episode in stream:
                counts.add(episode)
                if counts.total == max(episodes // 20, 200):
                    memory.start()
                if counts.total % 200 == 0:
                    memory.look()
                if counts.total % max(episodes // 20, 1) == 0:
                    print(f"{counts.total:,} episodes", file=sys.stderr, flush=True)

    with Rollout(Player(), limits=limits, concurrency=CONCURRENCY) as rollout:
        asyncio.run(run(rollout))
    seconds = time.monotonic() - started
    memory.look()
    server.close()
    sandbox.close()
    left = released(before)
    return {
        "episodes": episodes,
        "seconds": round(seconds, 1),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        **counts.results(),
        "memory growth in MB": round(memory.growth, 1),
        "memory at the end in MB": round(resident(), 1),
        **left,
    }


def planned(episodes: int) -> list[str]:
    """Return the fault of every episode, "" for none, in an order that is always the same."""
    plan = [
        fault for fault, share in SHARES.items() for _ in range(max(1, round(episodes * share)))
    ]
    plan += [
        kind for kind, share in HEALTHY.items() for _ in range(max(1, round(episodes * share)))
    ]
    plan += [""] * (episodes - len(plan))
    random.Random(0).shuffle(plan)
    return plan


def task(index: int, fault: str, url: str, sandbox: Any) -> Any:
    """Return the task of one episode."""
    from gem_core import Task

    if fault == "served":
        return Task("agentgym:Gem-v0", seed=index, env_kwargs={"url": url}, index=index)
    host, wrappers = HOSTS[index % len(HOSTS)], ()
    if fault in ("tool", "hanging program"):
        wrappers = (("python", {"sandbox": sandbox}),)
    if fault == "slow close" or (fault == "hang" and host == "Inline"):
        host = "OnThread" if index % 2 else "Async"
    if fault in ("killed worker", "process") or (fault == "hang" and index % 10 == 0):
        host = "InProcess"
    if fault == "killed server":
        host = "OnKilledServer"
    return Task(
        f"soak:{host}", seed=index, options={"fault": fault}, wrappers=wrappers, index=index
    )


class Count:
    """Compares every episode with its plan."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        self.seen: set[int] = set()
        self.total = self.twice = self.zeros = self.wrong = self.late = self.harmed = 0
        self.stops: dict[str, Counter[str]] = {fault: Counter() for fault in SHARES}
        self.reasons: Counter[str] = Counter()

    def add(self, episode: Any) -> None:
        """Count an episode that has ended."""
        from soak_worlds import TURNS

        self.total += 1
        self.twice += episode.index in self.seen
        self.seen.add(episode.index)
        fault = self.faults[episode.index]
        if fault in self.stops:
            self.stops[fault][episode.stop.value] += 1
        if fault in SHARES and fault not in STILL_VALID:
            self.zeros += not episode.failed
        elif episode.failed:
            if episode.stop.value == "env_deadline":  # the machine is busy
                self.late += 1
            else:
                self.harmed += 1
            self.reasons[f"{fault or 'no fault'}: {episode.failure}"[:200]] += 1
        else:
            self.wrong += episode.total_reward != TURNS

    def results(self) -> dict[str, Any]:
        """Return the counts by name."""
        return {
            "faults": {
                fault: {"episodes": sum(stops.values()), "ended as": dict(stops)}
                for fault, stops in self.stops.items()
            },
            "lost": len(self.faults) - len(self.seen),
            "returned twice": self.twice,
            "faults without a failure": self.zeros,
            "healthy with another reward": self.wrong,
            "healthy but over the deadline": self.late,
            "healthy but failed otherwise": self.harmed,
            "why healthy episodes failed": dict(self.reasons.most_common(10)),
        }


class Memory:
    """The growth of the resident memory after a warm-up."""

    def __init__(self) -> None:
        self.base, self.growth = float("inf"), 0.0

    def start(self) -> None:
        gc.collect()
        self.base = resident()

    def look(self) -> None:
        self.growth = max(self.growth, resident() - self.base)


def resident() -> float:
    """Return the resident memory in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def resources() -> dict[str, int]:
    """Count the threads, open files and children of this process."""
    return {
        "threads": len(threading.enumerate()),
        "open files": len(os.listdir("/proc/self/fd")),
        "children": len(children(os.getpid())),
    }


def released(before: dict[str, int]) -> dict[str, int]:
    """Close what the process shares, wait for hanging steps, and count what remains."""
    from gem_envs.remote import agentgym

    for client in agentgym._clients.values():  # as at the exit of the process
        client.close()
    deadline = time.monotonic() + 15.0
    while time.monotonic() < deadline:
        gc.collect()
        more = {f"{name} left": n - before[name] for name, n in resources().items()}
        if not any(more.values()):
            break
        time.sleep(0.2)
    return more


# The report.


def problems(results: dict[str, Any]) -> list[str]:
    """Return the names of the counts that are not as they must be."""
    zero = (
        "lost",
        "returned twice",
        "faults without a failure",
        "healthy with another reward",
        "healthy but failed otherwise",
        "threads left",
        "open files left",
        "children left",
        "processes left",
        "folders left",
    )
    bad = [name for name in zero if results[name]]
    bad += ["memory growth in MB"] * (results["memory growth in MB"] > MOST_MB)
    late = results["healthy but over the deadline"]
    return bad + ["healthy but over the deadline"] * (late > MOST_LATE * results["episodes"])


def rows(results: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the rows of the table."""
    yield "episodes", f"{results['episodes']:,}, {CONCURRENCY} at a time"
    yield "seconds", f"{results['seconds']:,.0f}"
    for fault, count in results["faults"].items():
        ends = ", ".join(f"`{stop}` {n:,}" for stop, n in sorted(count["ended as"].items()))
        yield fault, ends
    for name in (
        "lost",
        "returned twice",
        "faults without a failure",
        "healthy with another reward",
        "healthy but over the deadline",
        "healthy but failed otherwise",
    ):
        yield name, f"{results[name]:,}"
    yield "growth of the resident memory", f"{results['memory growth in MB']:g} MB"
    left = ("threads", "open files", "processes", "folders")
    yield f"{', '.join(left)} left", ", ".join(str(results[f"{name} left"]) for name in left)


def table(results: dict[str, Any]) -> str:
    """Return the results as a Markdown table."""
    lines = [f"| {name} | {value} |" for name, value in rows(results)]
    return "\n".join(["| | |", "|---|---|", *lines])


def report(results: dict[str, Any]) -> str:
    """Return the table, with the problems below it."""
    lines = [table(results)]
    if results["why healthy episodes failed"]:
        lines.append(f"\nwhy healthy episodes failed: {results['why healthy episodes failed']}")
    lines.append(f"\n{'problems: ' + ', '.join(bad) if (bad := problems(results)) else 'passed'}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
