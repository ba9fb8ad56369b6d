"""Make the tables and the figure of docs/gpu.md from the runs that `gpu_runs.py` keeps."""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Callable, Sequence
from itertools import accumulate, combinations
from math import comb
from pathlib import Path
from statistics import fmean, median
from typing import Any

import gpu_runs
from gpu_runs import TRAINERS, runs
from report_tables import markdown, with_tables

from gem_core import GemError
from gem_core.errors import ConfigError
from gem_eval.curves import draw_curves

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "gpu.md"
FIGURE = ROOT / "docs" / "images" / "gpu_curves.svg"
TRAINING = ("old logprobs", "logprobs and advantages", "advantages", "update")
"""The stages between rollout and weight sync."""
LEARNING = 0.45
"""A success rate above that of the first updates of all runs."""
PARTS = ((0, 3), (5, 8), (10, 13), (15, 18), (19, 22), (22, 25))
"""The updates of the table of success: first, and the one after the last."""
NORMS = 9
"""The number of updates whose gradient norms are averaged."""
PERMUTATIONS = 20_000
AIMS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "trl": ("60 updates a minute", lambda seconds, rate: rate >= 60),
    "verl": ("less than 3 s", lambda seconds, rate: seconds < 3),
    "openrlhf": ("less than 4 s", lambda seconds, rate: seconds < 4),
    "engine": ("120 updates a minute", lambda seconds, rate: rate >= 120),
}
"""The aim of a trainer, and whether its median seconds and its updates a minute meet it."""


def speed_table(known: dict[str, dict[int, dict[str, Any]]]) -> str:
    """Return the table of the runs that had the GPU alone."""
    rows = []
    for start, of_start in (("bfloat16", known), ("float32", runs("curves_float32"))):
        for trainer, seeds in of_start.items():
            for seed, run in seeds.items():
                if run["alone"] and len(run["updates"]) > 1:
                    curves = [[u["success"] for u in own["updates"]] for own in seeds.values()]
                    success = _range(_means(curves, *PARTS[-1]))
                    cells = [TRAINERS[trainer], start, str(seed), run.get("date", "")]
                    rows.append([*cells, *_speed(run), success])
    head = ["Trainer", "First weights", "Seed", "Date", "Seconds an update", "Updates a minute"]
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
        f"{per_minute(run):.0f}",
        *("" if share is None else f"{share:.0%}" for share in _shares(run, seconds)),
        "" if busy is None else f"{busy:.0%}",
        f"{tokens:,.0f}",
        ", ".join(f"{name} {value}" for name, value in run["stages"].items()),
    ]


def per_minute(run: dict[str, Any]) -> float:
    """Return the updates a minute of a run after its first update."""
    seconds = [u["seconds"] for u in run["updates"][1:]]
    return 60 * len(seconds) / sum(seconds)


def _shares(run: dict[str, Any], seconds: float) -> list[float | None]:
    """Return the shares of rollout, training and weight sync in an update, and the rest.

    TRL measures its rollout together with what follows it, so its rollout is that of the longest
    episode without the weight sync, and its training is what is outside of that stage. The engine's
    update contains its weight sync.
    """
    stages = run["stages"]
    if not stages:
        return [None] * 4
    sync = stages.get("weight sync", stages.get("of these, weight sync"))
    if "rollout and logprobs" in stages:
        rollout = (run["rollout"] or 0.0) - (sync or 0.0)
        training = seconds - stages["rollout and logprobs"]
    else:
        rollout = stages.get("rollout", 0.0)
        training = sum(stages.get(name, 0.0) for name in TRAINING)
    parts = [rollout / seconds, training / seconds, (sync or 0.0) / seconds]
    # medians of parts can add up to more than the median of the whole
    rest = max(0.0, 1 - sum(parts))
    return [*parts[:2], None if sync is None else parts[2], rest]


def success_table(known: dict[str, dict[int, dict[str, Any]]]) -> str:
    """Return the success of each trainer in parts of the runs, over the seeds that reach them."""
    rows, parts = [], list[list[list[float]]]()
    for trainer, seeds in known.items():
        curves = [[u["success"] for u in run["updates"]] for run in seeds.values()]
        means = [_means(curves, first, end) for first, end in PARTS]
        parts.append(means)
        lengths = ", ".join(str(len(c)) for c in curves)
        norms = _norms(seeds)
        norm = f"{fmean(norms):.2f} ({min(norms):.2f} to {max(norms):.2f})"
        rows.append([TRAINERS[trainer], lengths, *map(_range, means), _learning(curves), norm])
    gaps = [f"{100 * _gap(list(part)):.1f}" for part in zip(*parts)]
    rows.append(["largest gap between two ranges, in points", "", *gaps, "", ""])
    head = ["Trainer", "Updates of each seed", *(f"Updates {a} to {b - 1}" for a, b in PARTS)]
    tail = [f"First update with {LEARNING:.0%}", f"Mean gradient norm, updates 0 to {NORMS - 1}"]
    return markdown([*head, *tail], rows)


def _norms(seeds: dict[int, dict[str, Any]]) -> list[float]:
    """Return the mean gradient norm of the first updates of each run."""
    return [fmean(u["grad_norm"] for u in run["updates"][:NORMS]) for run in seeds.values()]


def norms_text(known: dict[str, dict[int, dict[str, Any]]]) -> str:
    """Compare the gradient norms of the trainers by a permutation test over all runs."""
    groups = [_norms(seeds) for seeds in known.values()]
    norms, rng = [n for own in groups for n in own], random.Random(0)
    spread = _spread(norms, groups)
    as_large = 0
    for _ in range(PERMUTATIONS):
        rng.shuffle(norms)
        as_large += _spread(norms, groups) >= spread - 1e-12
    return (
        f"The mean gradient norms of the {len(norms)} runs do not depend on the trainer more than "
        f"chance explains: p = {as_large / PERMUTATIONS:.2f} in a permutation test."
        if as_large > 0.05 * PERMUTATIONS
        else f"The mean gradient norms of the {len(norms)} runs depend on the trainer: "
        f"p = {as_large / PERMUTATIONS:.3f} in a permutation test."
    )


def _spread(norms: Sequence[float], groups: Sequence[Sequence[float]]) -> float:
    """Return the variance between groups of these sizes."""
    ends = list(accumulate(len(own) for own in groups))
    parts = [norms[end - len(own) : end] for end, own in zip(ends, groups)]
    middle = fmean(norms)
    return sum(len(part) * (fmean(part) - middle) ** 2 for part in parts)


def aims_table(known: dict[str, dict[int, dict[str, Any]]]) -> str:
    """Compare the runs that had the GPU alone with the aims of this page."""
    rows = []
    for trainer, (aim, met) in AIMS.items():
        run = next((run for run in known.get(trainer, {}).values() if run["alone"]), None)
        if run is None:
            continue
        seconds, rate = median(u["seconds"] for u in run["updates"][1:]), per_minute(run)
        cells = [TRAINERS[trainer], aim, f"{seconds:.2f} s", f"{rate:.0f}"]
        rows.append([*cells, "yes" if met(seconds, rate) else "no"])
    return markdown(["Trainer", "Aim", "Median update", "Updates a minute", "Met"], rows)


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
    for path in sorted(gpu_runs.RESULTS.glob("large_*.json")):
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
    text = (gpu_runs.RESULTS / "first_gradient.jsonl").read_text(encoding="utf-8")
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
    for path in sorted((gpu_runs.RESULTS / "replays").glob("*.jsonl")):
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
    for run in json.loads((gpu_runs.RESULTS / "updates.json").read_text(encoding="utf-8"))["runs"]:
        stages = ", ".join(f"{name} {seconds}" for name, seconds in run["stages"].items())
        seconds = str(round(median(run["seconds"]), 2))
        rows.append([run["trainer"], run["settings"], run["machine"], seconds, stages])
    head = ["Trainer", "Settings", "Machine", "Seconds an update", "Stages, in seconds"]
    return markdown(head, rows)


def conformance_table(_: dict[str, dict[int, dict[str, Any]]]) -> str:
    """Return the outcome of `gem-rl conformance ADAPTER --device cuda --bfloat16`, from --out."""
    rows = []
    for path in sorted((gpu_runs.RESULTS / "conformance").glob("*.md")):
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
    "norms": norms_text,
    "aims": aims_table,
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
        raise ConfigError(f"{gpu_runs.RESULTS / 'curves'} has no runs; `gpu_runs.py` keeps one")
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
    return [
        gpu_runs.RESULTS / "curves" / trainer / str(seed) for seed, n in lengths.items() if n >= end
    ]


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    try:
        report()
    except (GemError, OSError) as error:
        sys.exit(f"error: {error}")
