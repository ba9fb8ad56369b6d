"""Study of asynchronous training: the time until the same success."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median

from algorithms_figures import smooth
from async_frameworks import FRAMEWORK_RESULTS
from report_tables import Result, markdown
from studies_plan import ASYNC_SEEDS, RESULTS

from studies_report.algorithms import seeds_of
from studies_report.comparison import Comparison, compare, significant, verdict
from studies_report.figures import Line, draw_panels

__all__ = [
    "TESTS",
    "against_sync",
    "all_reach",
    "draw",
    "draw_tiny",
    "frameworks_table",
    "predictions",
    "reached",
    "results_table",
    "seconds_of",
    "tiny_results",
    "tiny_table",
]

TARGET = 0.75
WINDOW = 5
SKIPPED = 2
"""Updates whose time is not counted."""
LINES = {
    "sync": Line("sync", "#d55e00", "-"),
    "one-off": Line("one-off: two batches in flight", "#0072b2", "--"),
    "stream": Line("stream: the first 64 episodes", "#009e73", "-."),
}
TESTS = len(LINES) - 1
POINTS = 60
Times = tuple[float, int | None]
"""Seconds until the target, and the number of updates; None if it was not reached."""


def reached(result: Result) -> Times:
    """Return when the mean success of five updates is at the target for the first time.

    The first updates are not counted: they start processes and compile on a GPU, and asynchronous
    rollouts play a second batch meanwhile. A run that does not reach the target counts with its
    whole time.
    """
    curve = result["curve"]
    times = list(accumulate(curve["seconds"][SKIPPED:], initial=0.0))
    means = smooth(curve["success"], WINDOW)
    for update in range(WINDOW, len(means) + 1):
        if means[update - 1] >= TARGET:
            return times[update - SKIPPED], update
    return times[-1], None


def seconds_of(known: Mapping[str, Result], name: str, prefix: str = "async/") -> list[float]:
    """Return the seconds until the target of a rollout's runs."""
    return [reached(r)[0] for r in seeds_of(dict(known), f"{prefix}{name}")]


def all_reach(known: Mapping[str, Result], *names: str) -> bool:
    """Return whether all runs of these rollouts reach the target."""
    results = [r for name in names for r in seeds_of(dict(known), f"async/{name}")]
    return all(reached(r)[1] is not None for r in results)


def against_sync(known: dict[str, Result]) -> dict[tuple[str, str], Comparison | None]:
    """Compare each asynchronous rollout with the synchronous one: the tests of the plan."""
    theirs = seconds_of(known, "sync")
    return {
        (name, "sync"): compare(seconds_of(known, name), theirs) for name in LINES if name != "sync"
    }


def tiny_results(study: str) -> dict[str, Result]:
    """Read the results of a study with the tiny model on a CPU, by the name of their run."""
    paths = sorted((RESULTS / study / "tiny").glob("*.json"))
    results = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    return {result["run"]["name"]: result for result in results}


HEAD = [
    "",
    "seconds until 75 %",
    "updates until 75 %",
    "seconds per update",
    "of these, waiting for the environment",
    "lag, mean (most)",
    "success, held-out seeds",
    "runs that reach 75 %",
]


def results_table(known: dict[str, Result]) -> str:
    """Time and updates until the target on a GPU, and the two tests."""
    rows = _rows(known, "async/")
    if not rows:
        return "No run is done."
    workers = {r["workers"] for name in LINES for r in seeds_of(known, f"async/{name}")}
    shared = "Every run had the GPU to itself."
    if workers != {1}:
        shared = f"Up to {max(workers)} of these runs shared the GPU."
    tables = [markdown(HEAD, rows), shared, _tests(known), predictions(known)]
    return "\n\n".join(tables)


def tiny_table(known: dict[str, Result]) -> str:
    """The same with the tiny model on a CPU."""
    del known
    rows = _rows(tiny_results("async"), "async/tiny/")
    return markdown(HEAD, rows) if rows else "No run is done."


def _rows(known: dict[str, Result], prefix: str) -> list[list[str]]:
    rows = []
    for name in LINES:
        results = seeds_of(known, f"{prefix}{name}")
        if not results:
            continue
        waited = fmean(r["clock"]["environment"] / r["run"]["updates"] for r in results)
        lag = "0"
        if name != "sync":
            most = max(max(r["curve"]["lag_max"]) for r in results)
            lag = f"{fmean(fmean(r['curve']['lag']) for r in results):.2f} ({most:.0f})"
        success = fmean(r["evaluation"]["success"] for r in results)
        numbers = [f"{waited:.2f}", lag, f"{100 * success:.1f} %"]
        rows.append([f"`{name}`", *_times(results), *numbers, _count(results)])
    return rows


def _times(results: Sequence[Result]) -> list[str]:
    """Return mean and range of the seconds until the target, its updates, seconds per update."""
    seconds = [reached(r)[0] for r in results]
    updates = [n for r in results if (n := reached(r)[1]) is not None]
    complete = len(updates) == len(results)  # a mean of those that arrive would be too low
    spread = f" ({min(seconds):.0f} to {max(seconds):.0f})" if len(seconds) > 1 else ""
    return [
        f"{fmean(seconds):.0f}{spread}",
        f"{fmean(updates):.1f}" if complete else "",
        f"{fmean(median(r['curve']['seconds']) for r in results):.2f}",
    ]


def _count(results: Sequence[Result]) -> str:
    return f"{sum(reached(r)[1] is not None for r in results)} of {len(results)}"


def _tests(known: dict[str, Result]) -> str:
    comparisons = against_sync(known)
    discoveries = significant(comparisons, TESTS)
    rows = []
    for (name, _), c in comparisons.items():
        if c is not None:
            outcome = f"`{name}` {'slower' if c.difference > 0 else 'faster'}"
            judged = verdict(c, outcome, (name, "sync") in discoveries, ASYNC_SEEDS)
            if not all_reach(known, name, "sync"):
                judged = "open: not all runs reach 75 %"
            change = f"{c.difference:+.0f} s [{c.low:+.0f}, {c.high:+.0f}]"
            rows.append([f"`{name}`", change, f"{c.p:.4f}", judged])
    if not rows:
        return f"0 of {TESTS} tests have four seeds or more on both sides."
    return markdown(["", "seconds until 75 %, minus `sync`", "p", "verdict"], rows)


def predictions(known: dict[str, Result]) -> str:
    """Table of the plan's predictions, with what was measured."""
    results = {name: seeds_of(known, f"async/{name}") for name in LINES}
    missing = sum(ASYNC_SEEDS - len(own) for own in results.values())
    if missing:
        return f"The predictions are judged when all runs are done; {missing} are missing."
    if not all_reach(known, *LINES):
        return "The predictions are open: not all runs reach 75 %."
    tests, seconds = against_sync(known), {name: fmean(seconds_of(known, name)) for name in LINES}
    found = significant(tests, TESTS)
    faster = [n for n in LINES if (n, "sync") in found and seconds[n] < seconds["sync"]]
    computing = fmean(
        (r["clock"]["generation"] + r["clock"]["update"]) / r["run"]["updates"]
        for r in results["stream"]
    )
    half = "holds" if seconds["stream"] < seconds["sync"] / 2 else "does not hold"
    updates = {name: fmean(reached(r)[1] or 0 for r in own) for name, own in results.items()}
    changes = [updates[name] / updates["sync"] - 1 for name in LINES if name != "sync"]
    rows = [
        [
            "`one-off` and `stream` reach 75 % in less time than `sync`",
            f"significantly faster: {', '.join(f'`{name}`' for name in faster) or 'none'}",
            "holds" if len(faster) == TESTS else "does not hold",
        ],
        [
            "`stream` needs less than half the time of `sync`, if sampling and update take a "
            "second or less",
            f"{seconds['stream'] / seconds['sync']:.2f} of the time; sampling and update take "
            f"{computing:.2f} s",
            half if computing <= 1 else "open",
        ],
        [
            "the number of updates until 75 % differs by less than a quarter from that of `sync`",
            ", ".join(f"{change:+.0%}" for change in changes),
            "holds" if max(map(abs, changes)) < 0.25 else "does not hold",
        ],
    ]
    return markdown(["predicted", "measured", "verdict"], rows)


def frameworks_table(known: dict[str, Result]) -> str:
    """The frameworks in their own modes."""
    del known
    by_cell: dict[tuple[str, str], list[Result]] = {}
    for path in sorted(FRAMEWORK_RESULTS.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        run = result["run"]
        by_cell.setdefault((run["framework"], run["mode"]), []).append(result)
    rows = []
    for (framework, mode), results in sorted(by_cell.items(), key=lambda item: item[0]):
        run = results[0]["run"]
        where = f"{run['model']}, {results[0]['device']}"
        last = fmean(fmean(r["curve"]["success"][-WINDOW:]) for r in results)
        name = f"{framework} {results[0]['version']}"
        numbers = [*_times(results), f"{100 * last:.1f} %", _count(results)]
        rows.append([name, mode, where, *numbers])
    head = ["", "mode", "model, device", *HEAD[1:4], "success, last 5 updates", HEAD[-1]]
    return markdown(head, rows) if rows else "No run is done."


def draw(known: dict[str, Result], out: Path) -> bool:
    """Draw success in training over time on a GPU; return whether there is any."""
    return _draw(known, "async/", "SmolLM2-135M on a GPU", out)


def draw_tiny(known: dict[str, Result], out: Path) -> bool:
    """Draw the same for the tiny model on a CPU."""
    del known
    return _draw(tiny_results("async"), "async/tiny/", "Tiny model on a CPU", out)


def _draw(known: dict[str, Result], prefix: str, title: str, out: Path) -> bool:
    curves: dict[Line, list[list[float]]] = {}
    positions: dict[Line, list[float]] = {}
    for name, line in LINES.items():
        results = seeds_of(known, f"{prefix}{name}")
        if results:
            end = min(sum(r["curve"]["seconds"][SKIPPED:]) for r in results)
            positions[line] = [end * i / POINTS for i in range(POINTS + 1)]
            curves[line] = [_on_grid(r, positions[line]) for r in results]
    if curves:
        labels = {"ylabel": "success in training", "xlabel": "seconds after the second update"}
        draw_panels({title: curves}, out, positions=positions, width=1, **labels)
    return bool(curves)


def _on_grid(result: Result, grid: Sequence[float]) -> list[float]:
    """Return the success (mean of five updates) of the last update before each time."""
    times = list(accumulate(result["curve"]["seconds"][SKIPPED:], initial=0.0))
    means = smooth(result["curve"]["success"], WINDOW)[SKIPPED - 1 :]
    return [means[max(i for i, t in enumerate(times) if t <= seconds)] for seconds in grid]
