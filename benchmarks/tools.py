"""Compare the Python calls per second of gem's sandbox and of gem-llm 0.1.0, from 64 episodes.

    python benchmarks/tools.py

It first makes a virtual environment for the reference (`GEM_REFERENCE_PYTHON` names an existing
interpreter). Each row is the same 1,000 calls of `print(n+1)`. gem's calls go through the engine:
tasks, wrapper, sandbox, results. The reference's calls go directly to its tool, from as many
threads as its AsyncVectorEnv would use. The last column lists what a program can still access.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from reference_venv import reference_python

from gem_core.env.base import Env
from gem_core.policies.scripted import ScriptedPlayer
from gem_core.rollout.engine import Rollout
from gem_core.types import Task
from gem_tools.python import PythonTool
from gem_tools.sandbox.sandbox import Sandbox, SandboxLimits
from gem_tools.wrapper import ToolWrapper

REFERENCE = """
import json, sys, time
from concurrent.futures import ThreadPoolExecutor
from gem.tools.python_code_tool import PythonCodeTool
tool, calls, episodes = PythonCodeTool(timeout=30), int(sys.argv[1]), int(sys.argv[2])
def call(n):
    began = time.perf_counter()
    valid, error, text, _ = tool.execute_action(f"<python>print({n}+1)</python>")
    return time.perf_counter() - began, text.split()[-1:] == [str(n + 1)]
one = sorted(call(n)[0] for n in range(20))[10]
began = time.perf_counter()
with ThreadPoolExecutor(episodes) as threads:
    done = list(threads.map(call, range(calls)))
right = sum(ok for _, ok in done)
print(json.dumps({"seconds": time.perf_counter() - began, "right": right, "one": one}))
"""


class Calls(Env):
    """Environment inside the tool wrapper; it ends with the first action that is not a call."""

    execution = "inline"

    def on_reset(self, options: Any) -> Any:
        return "go", {}

    def on_step(self, action: str) -> Any:
        return "end", 0.0, True, False, {}


def gem(isolation: Any, calls: int, episodes: int) -> dict[str, Any]:
    """Make the calls through gem's engine."""
    per_episode = -(-calls // episodes)
    right = 0

    def act(env: Env, observation: str) -> str:
        nonlocal right
        number = env.seed * per_episode + env.turn
        right += env.turn > 0 and observation == str(number)
        more = env.turn < per_episode and number < calls
        return f"<python>print({number}+1)</python>" if more else "done"

    with Sandbox(SandboxLimits(seconds=30), isolation=isolation) as sandbox:
        sandbox.start()
        time.sleep(1.0)
        costs = []
        for _ in range(20):
            began = time.perf_counter()
            sandbox.run("print(1+1)")
            costs.append(time.perf_counter() - began)
            time.sleep(0.05)
        tool = PythonTool(sandbox=sandbox)
        engine = Rollout(
            ScriptedPlayer(act),
            make_env=lambda task: ToolWrapper(Calls(), [tool], max_uses=None),
            concurrency=episodes,
        )
        began = time.perf_counter()
        results = engine.run_batch([Task("calls", seed) for seed in range(episodes)])
        seconds = time.perf_counter() - began
        failed = sum(episode.failed for episode in results)
        accessible = ", ".join(sandbox.containment.not_contained) or "nothing known"
        name = "gem, bubblewrap" if sandbox.containment.full else "gem, fallback"
    return {
        "name": name,
        "seconds": seconds,
        "right": right,
        "one": statistics.median(costs),
        "failed": failed,
        "open": accessible,
    }


def reference(python: str, calls: int, episodes: int) -> dict[str, Any]:
    """Make the calls with the reference's tool, in its own interpreter."""
    # the tool runs the first `python` of the path
    path = os.path.dirname(python) + os.pathsep + os.environ["PATH"]
    done = subprocess.run(
        [python, "-c", REFERENCE, str(calls), str(episodes)],
        env={**os.environ, "PATH": path, "PYTHONPATH": ""},
        stdout=subprocess.PIPE,
        check=True,
    )
    return {
        "name": "gem-llm 0.1.0",
        "failed": 0,
        "open": "files, network, memory, processes",
        **json.loads(done.stdout.splitlines()[-1]),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--episodes", type=int, default=64)
    args = parser.parse_args()
    python = str(reference_python())
    rows = [gem("auto", args.calls, args.episodes), gem("partial", args.calls, args.episodes)]
    rows.append(reference(python, args.calls, args.episodes))
    machine = f"Python {sys.version.split()[0]}, {os.cpu_count()} cores"
    print(f"{args.calls} calls from {args.episodes} episodes, {machine}\n")
    head = ("tool", "calls/s", "right answers", "failed episodes")
    head += ("one call, median", "a program can still access")
    print(f"| {' | '.join(head)} |")
    print("|---" * len(head) + "|")
    for row in rows:
        rate = f"{args.calls / row['seconds']:.0f}"
        cells = (
            row["name"],
            rate,
            f"{row['right']}/{args.calls}",
            row["failed"],
            f"{1000 * row['one']:.1f} ms",
            row["open"],
        )
        print(f"| {' | '.join(map(str, cells))} |")
    if any(row["right"] != args.calls for row in rows if row["name"].startswith("gem,")):
        sys.exit("some calls gave a wrong answer")


if __name__ == "__main__":
    main()
