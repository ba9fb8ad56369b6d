"""Run the parts of the studies that the tiny model trains on a CPU.

    python benchmarks/studies_cpu.py list           # all runs, and which are done
    python benchmarks/studies_cpu.py run            # all runs that are not done
    python benchmarks/studies_cpu.py run async/

A finished run is one small JSON file in a folder `tiny` of benchmarks/results/studies.
`python benchmarks/studies.py report` puts them into docs/studies.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

from algorithms import main
from algorithms_plan import Run
from studies_plan import RESULTS, async_runs

from gem_core import GemError
from gem_core.policies import load_tiny

__all__ = ["cpu_plan"]

WORK = Path("runs/studies_cpu")


def cpu_plan() -> list[Run]:
    """Return all runs. The rate is that of a pilot with seed 100, which no run uses."""
    return async_runs("async/tiny/", seeds=3, updates=30, rate=5e-4)


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
