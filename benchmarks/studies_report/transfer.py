"""transfer/: what training on one environment changes on others, against the untrained model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import inf, sqrt
from pathlib import Path
from statistics import fmean

from algorithms_plan import HELD_OUT
from report_tables import Result, markdown
from studies_plan import plan

from studies_report.algorithms import seeds_of
from studies_report.figures import draw_heat_map

__all__ = [
    "Cell",
    "differences",
    "draw",
    "half_interval",
    "mean_differences",
    "seed_means",
    "table",
    "trained_on",
]

Cell = tuple[float, float]
"""Difference of the returns, and half of its 95 % interval."""
QUESTIONS = {
    "math:Sample-v0": 30,
    "qa:Sample-v0": 26,
    "logic:Sample-v0": 22,
    "code:Sample-v0": 20,
    "rg:letter_counting": 500,
    "rg:isomorphic_strings": 500,
    "rg:needle_haystack": 500,
}
"""Number of questions of environments whose seeds may draw the same one."""


def trained_on() -> list[str]:
    """Return what was trained on, in the order of the plan."""
    runs = [run for run in plan() if run.name.startswith("transfer/") and run.updates]
    return list(dict.fromkeys(run.cell.removeprefix("transfer/") for run in runs))


def differences(known: dict[str, Result]) -> dict[str, dict[str, Cell]]:
    """Return the cells by evaluated environment and training, of the runs that are done.

    Each task is compared with itself: the difference is that of the mean return over the seeds of
    training. The interval is that of the mean over held-out seeds, without the noise between seeds
    of training.
    """
    before = known.get("transfer/none")
    cells: dict[str, dict[str, Cell]] = {}
    if before is None:
        return cells
    for name in trained_on():
        results = seeds_of(known, f"transfer/{name}")
        for env in results[0]["transfer"] if results else ():
            first = before["transfer"][env]["returns"]
            columns = zip(
                tasks_of(env, len(first)), first, *(r["transfer"][env]["returns"] for r in results)
            )
            own = [(task, fmean(a) - was) for task, was, *a in columns if None not in (was, *a)]
            if len(own) > 1:
                tasks, changes = zip(*own)
                cells.setdefault(env, {})[name] = (fmean(changes), half_interval(changes, tasks))
    return cells


def tasks_of(env: str, count: int) -> list[int]:
    """Return the task of each held-out seed: its question, or a task of its own."""
    if env not in QUESTIONS:
        return list(range(count))
    return [random.Random(HELD_OUT + i).randrange(QUESTIONS[env]) for i in range(count)]


def half_interval(changes: Sequence[float], tasks: Sequence[int]) -> float:
    """Return half of the 95 % interval of the mean change; changes of one task are one cluster."""
    mean, sums = fmean(changes), dict[int, float]()
    for change, task in zip(changes, tasks):
        sums[task] = sums.get(task, 0.0) + change - mean
    clusters = len(sums)
    if clusters < 2:
        return inf
    total = sum(value**2 for value in sums.values()) * clusters / (clusters - 1)
    return 1.96 * sqrt(total) / len(changes)


def mean_differences(known: dict[str, Result]) -> dict[str, Cell]:
    """Return the mean over the evaluated environments, by training."""
    by_training: dict[str, list[Cell]] = {}
    for row in differences(known).values():
        for name, cell in row.items():
            by_training.setdefault(name, []).append(cell)
    return {
        name: (fmean(d for d, _ in cells), sqrt(sum(h**2 for _, h in cells)) / len(cells))
        for name, cells in by_training.items()
    }


def seed_means(known: dict[str, Result]) -> dict[str, list[float]]:
    """Return the mean difference over the evaluated environments of each seed, by training."""
    before = known.get("transfer/none")
    if before is None:
        return {}
    return {
        name: [
            fmean(e["return"] - before["transfer"][env]["return"] for env, e in own.items())
            for own in (r["transfer"] for r in seeds_of(known, f"transfer/{name}"))
        ]
        for name in trained_on()
    }


def table(known: dict[str, Result]) -> str:
    """The numbers of the heat map with their intervals."""
    cells = differences(known)
    if not cells:
        return "The evaluation of the untrained model, or every trained run, is missing."
    columns = [name for name in trained_on() if any(name in row for row in cells.values())]
    rows = [
        [f"`{env}`", *(_shown(row[name]) if name in row else "" for name in columns)]
        for env, row in cells.items()
    ]
    means = mean_differences(known)
    rows.append(["mean", *(_shown(means[name]) for name in columns)])
    counts = (len(seeds_of(known, f"transfer/{name}")) for name in columns)
    rows.append(["seeds of training", *map(str, counts)])
    flat = [cell for row in cells.values() for cell in row.values()]
    outside = sum(abs(d) > half for d, half in flat)
    text = (
        f"{outside} of {len(flat)} intervals exclude 0; "
        f"{0.05 * len(flat):.0f} would by chance, if training changed nothing."
    )
    return f"{text}\n\n{markdown(['', *columns], rows)}"


def _shown(cell: Cell) -> str:
    difference, half = cell
    text = f"{difference:+.3f} ± {half:.3f}"
    return f"**{text}**" if abs(difference) > half else text


def draw(known: dict[str, Result], out: Path) -> bool:
    """Draw the heat map; return whether there is any cell."""
    cells = differences(known)
    if not cells:
        return False
    columns = [name for name in trained_on() if any(name in row for row in cells.values())]
    values = [[row[n][0] if n in row else None for n in columns] for row in cells.values()]
    outside = [
        [n in row and abs(row[n][0]) > max(row[n][1], 0.005) for n in columns]
        for row in cells.values()
    ]
    draw_heat_map(values, outside, list(cells), columns, out)
    return True
