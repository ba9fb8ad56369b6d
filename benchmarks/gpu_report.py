"""Make the tables and the figure of docs/gpu.md from the runs of the recipes on a GPU.

    python benchmarks/gpu_report.py collect runs/trl0 trl 0 --alone  # keep a run: trainer, seed
    python benchmarks/gpu_report.py report

`collect` reads metrics.jsonl and, if they are there, episodes.jsonl, log.txt (the output of the
recipe), stages.json (`trl_stages.py`, `engine_curve.py`) and gpu.csv, the samples of

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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from report_tables import markdown, with_tables

from gem_core import GemError, read_episodes
from gem_core.errors import ConfigError
from gem_core.training.metrics_file import read_metrics
from gem_eval.curves import draw_curves

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "gpu"
PAGE = ROOT / "docs" / "gpu.md"
FIGURE = ROOT / "docs" / "images" / "gpu_curves.svg"
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
TRAINING = ("old logprobs", "logprobs and advantages", "advantages", "update")
"""The stages between rollout and weight sync."""
LEARNING = 0.45
"""A success rate above that of the first updates of all runs."""
PARTS = ((0, 3), (5, 8), (10, 13), (15, 18), (19, 22), (22, 25))
"""The updates of the table of success: first, and the one after the last."""
NORMS = 9
"""The number of updates whose gradient norms are averaged."""


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
        per_update = round(updates[0]["episodes"])
        run["rollout"] = rollout_seconds(args.folder / "episodes.jsonl", per_update)
        run["stages"] = stages_of(args.folder, args.trainer, len(updates))
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


def stages_of(folder: Path, trainer: str, updates: int) -> dict[str, float]:
    """Return the median seconds of each stage that the trainer itself measures."""
    source = folder / ("stages.json" if trainer in ("engine", "trl") else "log.txt")
    if not source.exists():
        return {}
    if trainer == "engine":
        measured = json.loads(source.read_text(encoding="utf-8"))
        return {name: _median(own[1:]) for name, own in measured.items() if len(own) > 1}
    if trainer == "trl":
        return trl_stages(source, updates)
    text = source.read_text(encoding="utf-8", errors="replace")
    names = STAGES.get(trainer, {})
    seconds = {name: re.findall(rf"{key}([\d.e-]+)", text) for key, name in names.items()}
    return {name: _median(map(float, own[1:])) for name, own in seconds.items() if len(own) > 1}


def trl_stages(path: Path, updates: int) -> dict[str, float]:
    """Return TRL's stages per update; a stage whose calls do not divide into updates is left out.

    TRL calls the first two methods once per micro-batch, and vLLM once per turn.
    """
    calls = json.loads(path.read_text(encoding="utf-8"))
    seconds = {name.partition(".")[2]: own for name, own in calls.items()}
    names = {
        "_prepare_inputs": "rollout and logprobs",
        "vLLM.generate": "of these, generation",
        "sync_weights": "of these, weight sync",
        "compute_loss": "loss",
    }
    return {
        name: _median(_per_update(seconds[call], updates)[1:])
        for call, name in names.items()
        if call in seconds and len(seconds[call]) % updates == 0
    }


def _per_update(seconds: list[float], updates: int) -> list[float]:
    """Return the sum of the calls of each update."""
    calls = len(seconds) // updates
    return [sum(seconds[i : i + calls]) for i in range(0, calls * updates, calls)]


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


def speed_table(known: dict[str, dict[int, dict[str, Any]]]) -> str:
    """Return the table of the runs that had the GPU alone."""
    rows = []
    for start, of_start in (("bfloat16", known), ("float32", runs("curves_float32"))):
        for trainer, seeds in of_start.items():
            for seed, run in seeds.items():
                if run["alone"] and len(run["updates"]) > 1:
                    curves = [[u["success"] for u in own["updates"]] for own in seeds.values()]
                    success = _range(_means(curves, *PARTS[-1]))
                    rows.append([TRAINERS[trainer], start, str(seed), *_speed(run), success])
    head = ["Trainer", "First weights", "Seed", "Seconds an update", "Updates a minute"]
    shares = ["Rollout", "Training", "Weight sync", "Rest"]
    first, end = PARTS[-1]
    success = f"Success, updates {first} to {end - 1}, all seeds"
    more = ["GPU busy", "Sampled tokens a second", "Stages, in seconds", success]
    return markdown([*head, *shares, *more], rows)


def _speed(run: dict[str, Any]) -> list[str]:
    """Return the cells of a run in `speed_table`."""
    updates, busy = run["updates"][1:], run["gpu_busy"]
    seconds = median(u["seconds"] for u in updates)
    tokens = median(u["tokens"] / u["seconds"] for u in updates)
    return [
        f"{seconds:.2f}",
        f"{60 / seconds:.0f}",
        *(f"{share:.0%}" if run["stages"] else "" for share in _shares(run, seconds)),
        "" if busy is None else f"{busy:.0%}",
        f"{tokens:,.0f}",
        ", ".join(f"{name} {value}" for name, value in run["stages"].items()),
    ]


def _shares(run: dict[str, Any], seconds: float) -> list[float]:
    """Return the shares of rollout, training and weight sync in an update, and the rest.

    TRL measures its rollout together with what follows it, so its rollout is that of the longest
    episode, and its training is what is outside of that stage.
    """
    stages = run["stages"]
    rollout = stages.get("rollout", run["rollout"] or 0.0)
    training = sum(stages.get(name, 0.0) for name in TRAINING)
    if "rollout and logprobs" in stages:
        training = seconds - stages["rollout and logprobs"]
    sync = stages.get("weight sync", stages.get("of these, weight sync", 0.0))
    parts = [rollout / seconds, training / seconds, sync / seconds]
    return [*parts, 1 - sum(parts)]


def success_table(known: dict[str, dict[int, dict[str, Any]]]) -> str:
    """Return the success of each trainer in parts of the runs, over the seeds that reach them."""
    rows, parts = [], list[list[list[float]]]()
    for trainer, seeds in known.items():
        curves = [[u["success"] for u in run["updates"]] for run in seeds.values()]
        means = [_means(curves, first, end) for first, end in PARTS]
        parts.append(means)
        lengths = ", ".join(str(len(c)) for c in curves)
        norms = [u["grad_norm"] for run in seeds.values() for u in run["updates"][:NORMS]]
        norm = f"{fmean(norms):.2f} ± {stdev(norms) / len(norms) ** 0.5:.2f}"
        rows.append([TRAINERS[trainer], lengths, *map(_range, means), _learning(curves), norm])
    gaps = [f"{100 * _gap(list(part)):.1f}" for part in zip(*parts)]
    rows.append(["largest gap between two ranges, in points", "", *gaps, "", ""])
    head = ["Trainer", "Updates of each seed", *(f"Updates {a} to {b - 1}" for a, b in PARTS)]
    tail = [f"First update with {LEARNING:.0%}", f"Mean gradient norm, updates 0 to {NORMS - 1}"]
    return markdown([*head, *tail], rows)


def _means(curves: Sequence[Sequence[float]], first: int, end: int) -> list[float]:
    """Return the mean of each curve over some updates, without the curves that are shorter."""
    return [fmean(curve[first:end]) for curve in curves if len(curve) >= end]


def largest_gap(known: dict[str, dict[int, dict[str, Any]]]) -> str:
    """Compare the ranges of all pairs of trainers, over all means of three updates."""
    curves = {
        trainer: [[u["success"] for u in run["updates"]] for run in seeds.values()]
        for trainer, seeds in known.items()
    }
    longest = max(len(curve) for own in curves.values() for curve in own)
    gaps, chances = [], list[float]()
    for first in range(longest - 2):
        ranges = {trainer: _means(own, first, first + 3) for trainer, own in curves.items()}
        full = [(trainer, own) for trainer, own in ranges.items() if len(own) > 1]
        for (one, a), (other, b) in combinations(full, 2):
            above = (min(a) - max(b), first, one, other)
            gaps.append(max(above, (min(b) - max(a), first, other, one)))
            chances.append(2 / comb(len(a) + len(b), len(a)))
    gap, first, high, low = max(gaps)
    apart = fmean(own[0] > 0 for own in gaps)
    return (
        "Over all means of three updates that two or more seeds reach, the ranges of two trainers "
        f"are disjoint in {apart:.0%} of all comparisons; {fmean(chances):.0%} are expected if the "
        f"trainers do not differ. The largest gap is {100 * max(gap, 0):.1f} points: "
        f"{TRAINERS[high]} above {TRAINERS[low]} in updates {first} to {first + 2}."
    )


def _learning(curves: Sequence[Sequence[float]]) -> str:
    """Return the first update of each seed whose success is at least `LEARNING`."""
    first = [next((i for i, share in enumerate(c) if share >= LEARNING), None) for c in curves]
    return ", ".join(f"not by {len(c) - 1}" if i is None else str(i) for i, c in zip(first, curves))


def _gap(ranges: Sequence[Sequence[float]]) -> float:
    """Return the largest distance between two ranges of several numbers; 0 if all overlap."""
    known = [own for own in ranges if len(own) > 1]
    return max((max(min(a) - max(b), 0.0) for a in known for b in known), default=0.0)


def float32_table(_: dict[str, dict[int, dict[str, Any]]]) -> str:
    """Return the same table for earlier runs, which began with float32 weights."""
    return success_table(runs("curves_float32"))


def earlier_table(_: dict[str, dict[int, dict[str, Any]]]) -> str:
    """Return the same table for OpenRLHF's runs on a dataset that was shuffled as a whole."""
    return success_table(runs("curves_earlier")).rpartition("\n")[0]  # without the gaps


def large_table(_: dict[str, dict[int, dict[str, Any]]]) -> str:
    """Return what `large_shape.py` measured."""
    rows = []
    for path in sorted(RESULTS.glob("large_*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        turns = ", ".join(map(str, run["turns"]))
        alone = run.get("alone", True)
        seconds = ", ".join(f"{s:.0f}" for s in run["seconds"]) if alone else ""
        peak = run["peak_gib"] if alone else ""
        numbers = [run["mean_tokens"], run["longest"], run["context"], seconds, peak]
        trainer = TRAINERS[run["trainer"]]
        rows.append([trainer, str(run["episodes"]), turns, *map(str, numbers), str(run["failed"])])
    head = ["Trainer", "Episodes", "Turns", "Mean tokens", "Longest", "Limit"]
    return markdown([*head, "Seconds of each update", "Peak GiB", "Failed episodes"], rows)


def first_gradient_table(_: dict[str, dict[int, dict[str, Any]]]) -> str:
    """Return what `first_gradient.py` printed."""
    rows, names = [], list[str]()
    text = (RESULTS / "first_gradient.jsonl").read_text(encoding="utf-8")
    for run in map(json.loads, text.splitlines()):
        trainer, _, seed = run["run"].rpartition("-")
        own = {name: cell for name, cell in run.items() if isinstance(cell, dict)}
        names = list(own)
        cells = [f"{cell['norm']:.3f} ({cell['cosine']:.4f})" for cell in own.values()]
        rows.append([TRAINERS[trainer], seed, f"{run['reported']:.3f}", *cells])
    return markdown(["Trainer", "Seed", "Reported by the trainer", *names], rows)


def replays_table(_: dict[str, dict[int, dict[str, Any]]]) -> str:
    """Return the norms that `replay_run.py` printed, and how far apart the last ones are."""
    rows = []
    for path in sorted((RESULTS / "replays").glob("*.jsonl")):
        text = path.read_text(encoding="utf-8")
        all_updates = [json.loads(line) for line in text.splitlines()]
        updates = all_updates[:NORMS]
        trainer, seed = path.stem.rsplit("-", 1)
        means = [f"{fmean(u[name] for u in updates):.3f}" for name in ("reported", "replayed")]
        largest = max(abs(u["reported"] / u["replayed"] - 1) for u in updates)
        later = [u["replayed"] / u["reported"] for u in all_updates[20:]]
        ratios = f"{min(later):.1f} to {max(later):.1f}" if later else ""
        rows.append([TRAINERS[trainer], seed, *means, f"{largest:.0%}", ratios])
    first = f"updates 0 to {NORMS - 1}"
    head = ["Trainer", "Seed", f"Mean norm reported, {first}", f"Mean norm replayed, {first}"]
    more = ["Largest difference in one of them", "Replayed / reported, from update 20"]
    return markdown([*head, *more], rows)


def _range(shares: list[float]) -> str:
    """Return the mean with minimum and maximum."""
    return f"{fmean(shares):.0%} ({min(shares):.0%} to {max(shares):.0%})" if shares else ""


def updates_table(_: dict[str, dict[int, dict[str, Any]]]) -> str:
    """Return the table of updates.json: other measurements, with settings written by hand."""
    rows = []
    for run in json.loads((RESULTS / "updates.json").read_text(encoding="utf-8"))["runs"]:
        stages = ", ".join(f"{name} {seconds}" for name, seconds in run["stages"].items())
        seconds = str(round(median(run["seconds"]), 2))
        rows.append([run["trainer"], run["settings"], run["machine"], seconds, stages])
    head = ["Trainer", "Settings", "Machine", "Seconds an update", "Stages, in seconds"]
    return markdown(head, rows)


def conformance_table(_: dict[str, dict[int, dict[str, Any]]]) -> str:
    """Return the outcome of `gem-rl conformance ADAPTER --device cuda --bfloat16`, from --out."""
    rows = []
    for path in sorted((RESULTS / "conformance").glob("*.md")):
        lines = path.read_text(encoding="utf-8").splitlines()
        trainer = lines[0].strip("| ").rpartition("| ")[2]
        outcomes = [line.split(" | ")[1] for line in lines[2:]]
        cosines = [float(c) for c in re.findall(r"cosine ([\d.]+)", "\n".join(lines))]
        kinds = [sum(o.startswith(kind) for o in outcomes) for kind in ("ok", "rejected", "FAILED")]
        rows.append([trainer, *map(str, kinds), f"{min(cosines):.5f}"])
    return markdown(["Trainer", "Ok", "Rejected as declared", "Failed", "Lowest cosine"], rows)


TABLES = {
    "speed": speed_table,
    "success": success_table,
    "success-earlier": earlier_table,
    "success-float32": float32_table,
    "gap": largest_gap,
    "large": large_table,
    "first-gradient": first_gradient_table,
    "replays": replays_table,
    "updates": updates_table,
    "conformance": conformance_table,
}


def report() -> None:
    """Write the figure, and the tables into the page."""
    known = runs()
    if not known:
        raise ConfigError(f"{RESULTS / 'curves'} has no runs; `collect` keeps one")
    curves = {TRAINERS[trainer]: _longest(trainer, own) for trainer, own in known.items()}
    draw_curves(curves, FIGURE, band="range", smooth=3)
    text = with_tables(PAGE.read_text(encoding="utf-8"), TABLES, known)
    PAGE.write_text(text, encoding="utf-8")
    digests = {run.get("model", "unknown") for seeds in known.values() for run in seeds.values()}
    print(f"wrote {PAGE} and {FIGURE}; first weights: {', '.join(sorted(digests))}")


def _longest(trainer: str, seeds: dict[int, dict[str, Any]]) -> list[Path]:
    """Return the runs for the figure: those that two or more seeds have reached the end of."""
    lengths = {seed: len(run["updates"]) for seed, run in seeds.items()}
    shared = [n for n in lengths.values() if sum(own >= n for own in lengths.values()) > 1]
    end = max(shared, default=0)
    return [RESULTS / "curves" / trainer / str(seed) for seed, n in lengths.items() if n >= end]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, dest="command")
    keep = commands.add_parser("collect", help="keep a run of a recipe")
    keep.add_argument("folder", type=Path, help="the output folder of the recipe")
    keep.add_argument("trainer", choices=TRAINERS)
    keep.add_argument("seed", type=int, help="the seed of the run")
    keep.add_argument("--alone", action="store_true", help="no other program used the GPU")
    keep.add_argument("--model", default="", help="the digest of the first weights")
    commands.add_parser("report", help="write the tables and the figure")
    args = parser.parse_args()
    if args.command == "collect":
        collect(Collect(args.folder, args.trainer, args.seed, args.alone, args.model))
    else:
        report()


if __name__ == "__main__":
    try:
        main()
    except (GemError, OSError) as error:
        sys.exit(f"error: {error}")
