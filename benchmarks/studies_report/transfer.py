"""Study 4: what training on one environment changes on others, against the untrained model."""

from __future__ import annotations

from math import sqrt
from pathlib import Path
from statistics import fmean

from report_tables import Result, markdown, results_under
from studies_plan import plan

from studies_report.figures import draw_heat_map

__all__ = ["Cell", "differences", "draw", "mean_differences", "table"]

Cell = tuple[float, float]
"""Difference of the returns, and half of its 95 % interval."""


def trained_on() -> list[str]:
    """Return the names of the trained runs, in the order of the plan."""
    runs = [run for run in plan() if run.name.startswith("transfer/") and run.updates]
    return [run.name.removeprefix("transfer/") for run in runs]


def differences(known: dict[str, Result]) -> dict[str, dict[str, Cell]]:
    """Return the cells by evaluated environment and trained run, of the runs that are done.

    The interval is the noise of the evaluation. There is one run each, so it does not
    include the noise between runs.
    """
    results = results_under(known, "transfer/")
    before = results.pop("none", None)
    cells: dict[str, dict[str, Cell]] = {}
    if before is None:
        return cells
    for name in trained_on():
        if name not in results:
            continue
        for env, after in results[name]["transfer"].items():
            first = before["transfer"][env]
            variance = (
                after["return_std"] ** 2 / results[name]["run"]["evaluated"]
                + first["return_std"] ** 2 / before["run"]["evaluated"]
            )
            cell = (after["return"] - first["return"], 1.96 * sqrt(variance))
            cells.setdefault(env, {})[name] = cell
    return cells


def mean_differences(known: dict[str, Result]) -> dict[str, Cell]:
    """Return the mean over the evaluated environments, by trained run."""
    by_run: dict[str, list[Cell]] = {}
    for row in differences(known).values():
        for name, cell in row.items():
            by_run.setdefault(name, []).append(cell)
    return {
        name: (fmean(d for d, _ in cells), sqrt(sum(h**2 for _, h in cells)) / len(cells))
        for name, cells in by_run.items()
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
    flat = [cell for row in cells.values() for cell in row.values()]
    outside = sum(abs(d) > half for d, half in flat)
    text = (
        f"{outside} of {len(flat)} intervals exclude 0; "
        f"{0.05 * len(flat):.0f} would by chance, if training changed nothing."
    )
    return f"{text}\n\n{markdown(['', *columns], rows)}"


def _shown(cell: Cell) -> str:
    difference, half = cell
    text = f"{difference:+.2f} ± {half:.2f}"
    return f"**{text}**" if abs(difference) > half else text


def draw(known: dict[str, Result], out: Path) -> bool:
    """Draw the heat map; return whether there is any cell."""
    cells = differences(known)
    if not cells:
        return False
    columns = [name for name in trained_on() if any(name in row for row in cells.values())]
    values = [[row[n][0] if n in row else None for n in columns] for row in cells.values()]
    outside = [[n in row and abs(row[n][0]) > row[n][1] for n in columns] for row in cells.values()]
    draw_heat_map(values, outside, list(cells), columns, out)
    return True
