"""Run the parts of the studies that the tiny model trains on a CPU.

    python benchmarks/studies_cpu.py list           # all runs, and which are done
    python benchmarks/studies_cpu.py run            # all runs that are not done
    python benchmarks/studies_cpu.py run async/
    python benchmarks/studies_cpu.py run scenarios/ --context 1536

A finished run is one small JSON file in a folder `tiny` of benchmarks/results/studies.
`python benchmarks/studies.py report` puts them into docs/studies.md.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from algorithms import main
from algorithms_plan import Run, Setting
from studies_plan import RESULTS, async_runs

from gem_core import GemError
from gem_core.policies import load_tiny

__all__ = ["CPU_SCENARIOS", "cpu_plan"]

WORK = Path("runs/studies_cpu")
CPU_SCENARIOS = {
    "Web": Setting("miniwob:click-button", {"max_turns": 4}, tokens=48),
    "Terminal": Setting("terminal:CountErrors-v0", {"max_turns": 6}, tokens=96),
    "SciWorld": Setting(
        "sciworld:lifespan-longest-lived", {"simplify": "easy", "max_turns": 10}, tokens=48
    ),
}
"""Scenarios that need Chromium, bubblewrap and Java."""
RATE = 5e-4
"""The better of two in a pilot with seed 100, which no run uses."""


def cpu_plan() -> list[Run]:
    """Return all runs."""
    more: dict[str, Any] = {"updates": 10, "episodes": 16, "evaluated": 32, "passes": 4}
    more |= {"expert_updates": 100, "expert_episodes": 64, "expert_rate": 1e-3, "concurrency": 4}
    return async_runs("async/tiny/", seeds=3, updates=30, rate=RATE) + [
        Run(f"scenarios/tiny/{name}-0", setting, "rebn", rate=RATE, warm_up=False, **more)
        for name, setting in CPU_SCENARIOS.items()
    ]


if __name__ == "__main__":
    try:
        model = WORK / "model"
        if not (model / "config.json").is_file():
            for part in load_tiny():
                part.save_pretrained(model)
        settings = {"planned": cpu_plan(), "results": RESULTS, "work": WORK}
        sys.exit(main(about=__doc__, only_commands=("list", "run"), **settings))
    except (GemError, OSError) as error:
        sys.exit(f"error: {error}")
