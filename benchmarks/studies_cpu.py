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

from algorithms import main
from studies_cpu_plan import cpu_plan
from studies_plan import RESULTS

from gem_core import GemError
from gem_core.policies import load_tiny

WORK = Path("runs/studies_cpu")

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
