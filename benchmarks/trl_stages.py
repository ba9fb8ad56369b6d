"""Run TRL's recipe and write the seconds of each stage, as TRL's own profiler measures them.

    python benchmarks/trl_stages.py --vllm --updates 25 --out runs/trl

The options are those of `examples/trl_guess_the_number.py`. The file, stages.json in the output
folder, has one list of seconds per stage, with one number per call. Stages contain each other.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

import tyro
from trl.extras.profiling import ProfilingContext

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import trl_guess_the_number as recipe


def main(args: recipe.Args) -> None:
    stages = defaultdict[str, list[float]](list)

    def keep(context: ProfilingContext, seconds: float) -> None:
        stages[context.name].append(round(seconds, 4))

    ProfilingContext._log_metrics = keep  # TRL's own only reports to wandb, MLflow and Trackio
    Path(args.out).mkdir(parents=True, exist_ok=True)
    try:
        recipe.main(args)
    finally:
        (Path(args.out) / "stages.json").write_text(json.dumps(stages), encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(recipe.Args))
