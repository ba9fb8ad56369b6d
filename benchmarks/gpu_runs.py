"""Runs of the recipes on a GPU that are kept in benchmarks/results/gpu: write and read them.

    python benchmarks/gpu_runs.py runs/trl0 trl 0 --alone  # keep a run: folder, trainer, seed

It reads metrics.jsonl and, if they are there, episodes.jsonl, log.txt (the output of the recipe),
stages.json (`trl_stages.py`, `engine_curve.py`) and gpu.csv, the samples of

    nvidia-smi --query-gpu=timestamp,utilization.gpu,memory.used \
        --format=csv,noheader,nounits -lms 250

`--alone`: no other program used the GPU; only the times of such runs are in the table.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import fmean, median
from typing import Any

from gem_core import GemError, read_episodes
from gem_core.errors import ConfigError
from gem_core.training.metrics_file import read_metrics

__all__ = ["RESULTS", "TRAINERS", "Collect", "collect", "kept_run", "runs"]

RESULTS = Path(__file__).parent / "results" / "gpu"
TRAINERS = {
    "engine": "plain torch engine",
    "trl": "TRL",
    "verl": "verl",
    "openrlhf": "OpenRLHF",
    "oat": "oat",
    "rl2": "RL2",
    "skyrl": "SkyRL",
}
STAGES = {
    "verl": {
        r"timing_s/gen:": "rollout",
        r"timing_s/old_log_prob:": "old logprobs",
        r"timing_s/adv:": "advantages",
        r"timing_s/gem:": "of these, gem's",
        r"timing_s/update_actor:": "update",
        r"timing_s/update_weights:": "weight sync",
    },
    "openrlhf": {
        r"'timing/generation': ": "rollout",
        r"'timing/make_experience': ": "logprobs and advantages",
        r"'timing/ppo_train': ": "update",
        r"'timing/broadcast': ": "weight sync",
    },
    "rl2": {
        r"timing/rollout ": "rollout",
        r"timing/compute_logps ": "old logprobs",
        r"timing/compute_advantages ": "advantages",
        r"timing/update_actor ": "update",
        r"timing/update_rollout ": "weight sync",
    },
    "skyrl": {
        r"Finished: 'generate', time cost: ": "rollout",
        r"Finished: 'fwd_logprobs_values_reward', time cost: ": "old logprobs",
        r"Finished: 'compute_advantages_and_returns', time cost: ": "advantages",
        r"Finished: 'policy_train', time cost: ": "update",
        r"Finished: 'sync_weights', time cost: ": "weight sync",
    },
}
"""What a trainer's log calls its stages."""
TRL_STAGES = {
    "_prepare_inputs": "rollout and logprobs",
    "vLLM.generate": "of these, generation",
    "sync_weights": "of these, weight sync",
    "compute_loss": "loss",
}
"""What TRL's profiler calls its stages, without the name of the class."""


@dataclass
class Collect:
    """A run of a recipe to keep in benchmarks/results/gpu."""

    folder: Path
    """The output folder of the recipe."""
    trainer: str
    """One of `TRAINERS`."""
    seed: int
    alone: bool = False
    """Whether no other program used the GPU."""
    model: str = ""
    """The digest of the first weights, if it is known."""


def kept_run(trainer: str, seed: int) -> Path:
    """Return the folder of a run in the results."""
    return RESULTS / "curves" / trainer / str(seed)


def collect(args: Collect) -> None:
    """Write the metrics of a run without those per turn, and run.json."""
    if args.trainer not in TRAINERS:
        raise ConfigError(f"unknown trainer {args.trainer!r}; expected: {', '.join(TRAINERS)}")
    updates = read_metrics(args.folder)
    run: dict[str, Any] = {"alone": args.alone}
    if args.model:
        run["model"] = args.model
    if args.alone:
        run["date"] = date.today().isoformat()
        per_update = round(updates[0]["episodes"])
        run["rollout"] = rollout_seconds(args.folder / "episodes.jsonl", per_update)
        run["stages"] = stages_of(args.folder, args.trainer)
        run["gpu_busy"] = gpu_busy(args.folder / "gpu.csv", sum(u["seconds"] for u in updates[1:]))
    out = kept_run(args.trainer, args.seed)
    out.mkdir(parents=True, exist_ok=True)
    kept = [{k: v for k, v in u.items() if not k.startswith("turn/")} for u in updates]
    lines = "".join(json.dumps(u) + "\n" for u in kept)
    (out / "metrics.jsonl").write_text(lines, encoding="utf-8")
    (out / "run.json").write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")
    print(f"{len(updates)} updates in {out}")


def rollout_seconds(path: Path, per_update: int) -> float | None:
    """Return the median, over all updates but the first, of the longest episode's seconds.

    The episodes of an update begin together.
    """
    if not path.exists():
        return None
    longest = defaultdict[int, float](float)
    for i, e in enumerate(read_episodes(path)):
        update = e.final_info.get("update", i // per_update)
        longest[update] = max(longest[update], e.seconds)
    later = [longest[update] for update in sorted(longest)[1:]]
    return round(median(later), 3) if later else None


def stages_of(folder: Path, trainer: str) -> dict[str, float]:
    """Return the median seconds of each stage that the trainer itself measures."""
    source = folder / ("stages.json" if trainer in ("engine", "trl") else "log.txt")
    if not source.exists():
        return {}
    if source.suffix == ".json":
        measured = json.loads(source.read_text(encoding="utf-8"))
        seconds = {name.partition(".")[2] or name: own for name, own in measured.items()}
        names = TRL_STAGES if trainer == "trl" else {name: name for name in seconds}
        return {
            name: _median(seconds[call][1:])
            for call, name in names.items()
            if len(seconds.get(call, ())) > 1
        }
    text = source.read_text(encoding="utf-8", errors="replace")
    names = STAGES.get(trainer, {})
    seconds = {name: re.findall(rf"{key}([\d.e-]+)", text) for key, name in names.items()}
    return {name: _median(map(float, own[1:])) for name, own in seconds.items() if len(own) > 1}


def gpu_busy(path: Path, seconds: float) -> float | None:
    """Return the mean utilization of the GPU over the last `seconds` before it became idle."""
    if not path.exists():
        return None
    lines = path.read_text(encoding="utf-8").splitlines()
    used = [int(line.split(",")[1]) for line in lines if line.count(",") == 2]
    while used and used[-1] == 0:
        used.pop()
    kept = used[-max(1, int(seconds / 0.25)) :]
    return round(fmean(kept) / 100, 3) if kept else None


def _median(numbers: Iterable[float]) -> float:
    return round(median(numbers), 2)


def runs(folder: str = "curves") -> dict[str, dict[int, dict[str, Any]]]:
    """Read the kept runs, by trainer and seed."""
    known: dict[str, dict[int, dict[str, Any]]] = {}
    for trainer in TRAINERS:
        for path in sorted((RESULTS / folder / trainer).glob("*/run.json")):
            text = (path.parent / "metrics.jsonl").read_text(encoding="utf-8")
            updates = [json.loads(line) for line in text.splitlines()]
            run = {**json.loads(path.read_text(encoding="utf-8")), "updates": updates}
            known.setdefault(trainer, {})[int(path.parent.name)] = run
    return known


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the output folder of the recipe")
    parser.add_argument("trainer", choices=TRAINERS)
    parser.add_argument("seed", type=int, help="the seed of the run")
    parser.add_argument("--alone", action="store_true", help="no other program used the GPU")
    parser.add_argument("--model", default="", help="the digest of the first weights")
    collect(Collect(**vars(parser.parse_args())))


if __name__ == "__main__":
    try:
        main()
    except (GemError, OSError) as error:
        sys.exit(f"error: {error}")
