"""The runs of `studies_cpu.py`: parts of the studies that the tiny model trains on a CPU."""

from __future__ import annotations

from typing import Any

from algorithms_plan import Run, Setting
from studies_plan import async_runs

__all__ = ["CPU_SCENARIOS", "cpu_plan"]

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
    more |= {"expert_updates": 300, "expert_episodes": 64, "expert_size": 8}
    more |= {"expert_rate": 3e-3, "concurrency": 4}
    return async_runs("async/tiny/", seeds=3, updates=30, rate=RATE) + [
        Run(f"scenarios/tiny/{name}-0", setting, "rebn", rate=RATE, warm_up=False, **more)
        for name, setting in CPU_SCENARIOS.items()
    ]
