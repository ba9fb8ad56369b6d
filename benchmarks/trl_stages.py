"""Run TRL's recipe and write the seconds of each stage, as TRL's own profiler measures them.

    python benchmarks/trl_stages.py --vllm --updates 25 --out runs/trl

The options are those of `examples/trl_guess_the_number.py`. The file, stages.json in the output
folder, has one list of seconds per stage, with the sum of its calls in each update. Stages contain
each other.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

import tyro
from trl.extras.profiling import ProfilingContext

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import trl_guess_the_number as recipe


def main(args: recipe.Args) -> None:
    stages = defaultdict[str, Counter[int]](Counter)

    def keep(context: ProfilingContext, seconds: float) -> None:
        stages[context.name][context.step] += seconds

    ProfilingContext._log_metrics = keep  # TRL's own only reports to wandb, MLflow and Trackio
    Path(args.out).mkdir(parents=True, exist_ok=True)
    try:
        recipe.main(args)
    finally:
        updates = range(1 + max((step for own in stages.values() for step in own), default=-1))
        lists = {name: [round(own[i], 4) for i in updates] for name, own in stages.items()}
        (Path(args.out) / "stages.json").write_text(json.dumps(lists), encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(recipe.Args))
