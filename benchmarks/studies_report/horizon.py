"""horizon/: schedules of the horizon at equal tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from algorithms_figures import smooth
from report_tables import Result, markdown
from studies_plan import HORIZON_SEEDS, SCHEDULES

from studies_report.algorithms import seeds_of
from studies_report.comparison import Comparison, compare, significant, verdict, with_interval
from studies_report.figures import Line, draw_dots

__all__ = [
    "FIXED",
    "TESTS",
    "draw",
    "falls",
    "growing_against_fixed",
    "predictions",
    "results_table",
    "unstable",
]

LINES = {
    "fixed-5": Line("5 turns", "#e69f00", "-."),
    "fixed-40": Line("40 turns", "#d55e00", "-"),
    "growing-5": Line("growing every 5 updates", "#56b4e9", "--"),
    "growing-10": Line("growing every 10 updates", "#0072b2", "-"),
    "gated": Line("gated by success", "#009e73", "-"),
}
FIXED = ("fixed-5", "fixed-40")
TESTS = len(FIXED) * (len(SCHEDULES) - len(FIXED))
WINDOW = 5
HORIZONS = (5, 10, 20, 40)
ROOMS = (2, 4, 8, 16)
"""Those of `corridor.py`, whose import would register an environment."""


def _success(known: dict[str, Result], name: str) -> list[float]:
    return [r["evaluation"]["success"] for r in seeds_of(known, f"horizon/{name}")]


def growing_against_fixed(known: dict[str, Result]) -> dict[tuple[str, str], Comparison | None]:
    """Compare each growing or gated horizon with each fixed one: the six tests of the plan."""
    return {
        (name, fixed): compare(_success(known, name), _success(known, fixed))
        for name in SCHEDULES
        if name not in FIXED
        for fixed in FIXED
    }


def unstable(result: Result) -> bool:
    """Whether the success ends 0.2 or more below its highest value at the same horizon."""
    curve = result["curve"]
    at_last = zip(curve["success"], curve["horizon"])
    return falls([success for success, turns in at_last if turns == curve["horizon"][-1]])


def falls(success: Sequence[float]) -> bool:
    """Whether the mean of five updates ends 0.2 or more below its highest."""
    complete = smooth(success)[WINDOW - 1 :]
    return bool(complete) and max(complete) - complete[-1] >= 0.2


def results_table(known: dict[str, Result]) -> str:
    """Success with 40 turns after equal tokens, stability, and the six tests."""
    rows = []
    if "horizon/before" in known:
        success = known["horizon/before"]["evaluation"]["success"]
        rows.append(["before", f"{100 * success:.1f} %", "", "", "", ""])
    for name, line in LINES.items():
        results = seeds_of(known, f"horizon/{name}")
        if results:
            tokens = fmean(sum(r["curve"]["tokens"]) for r in results)
            updates = fmean(len(r["curve"]["tokens"]) for r in results)
            numbers = [f"{tokens / 1000:.0f}k", f"{updates:.0f}"]
            numbers += [f"{sum(map(unstable, results))} of {len(results)}", str(len(results))]
            success = with_interval(_success(known, name), percent=True)
            rows.append([line.label, success, *numbers])
    if not rows:
        return "No run is done."
    head = ["horizon", "success", "sampled tokens", "updates", "unstable", "seeds"]
    tables = [markdown(head, rows), _tests(known), _by_rooms(known), predictions(known)]
    return "\n\n".join(table for table in tables if table)


def _by_rooms(known: dict[str, Result]) -> str:
    """Success with 40 turns by the number of rooms, and the updates at each horizon."""
    before = known.get("horizon/before")
    rows = [] if before is None else [["before", *_rooms([before]), *[""] * len(HORIZONS)]]
    for name, line in LINES.items():
        results = seeds_of(known, f"horizon/{name}")
        if results:
            used = [_range([r["curve"]["horizon"].count(n) for r in results]) for n in HORIZONS]
            rows.append([line.label, *_rooms(results), *used])
    head = ["", *(f"{n} rooms" for n in ROOMS), *(f"updates with {n} turns" for n in HORIZONS)]
    return markdown(head, rows)


def _rooms(results: Sequence[Result]) -> list[str]:
    return [f"{100 * fmean(shares):.1f} %" for shares in zip(*map(_by_room, results))]


def _by_room(result: Result) -> list[float]:
    shares = result["evaluation"]["success_by_rooms"]
    return [shares.get(str(n), 0.0) for n in ROOMS]


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return "" if not high else f"{low}" if low == high else f"{low} to {high}"


def predictions(known: dict[str, Result]) -> str:
    """What the plan predicts of 5 turns; the tests judge the others, or nothing can (the plan)."""
    results = {name: seeds_of(known, f"horizon/{name}") for name in LINES}
    missing = sum(HORIZON_SEEDS - len(own) for own in results.values())
    if missing:
        return f"{missing} runs are missing."
    short = fmean(_success(known, "fixed-5"))
    judged = "holds" if short < 0.85 else "does not hold"
    row = ["5 turns: stays below 85 % success", f"{100 * short:.1f} %", judged]
    return markdown(["predicted", "measured", "verdict"], [row])


def _tests(known: dict[str, Result]) -> str:
    comparisons = growing_against_fixed(known)
    discoveries = significant(comparisons, TESTS)
    rows = []
    for (name, fixed), c in comparisons.items():
        if c is not None:
            higher = f"{LINES[name if c.difference > 0 else fixed].label} higher"
            judged = verdict(c, higher, (name, fixed) in discoveries, HORIZON_SEEDS)
            numbers = [c.effect(), f"{c.superiority:.2f}", f"{c.p:.4f}", judged]
            rows.append([LINES[name].label, LINES[fixed].label, *numbers])
    text = f"{len(rows)} of {TESTS} tests have four seeds or more on both sides"
    if not rows:
        return f"{text}."
    text += f"; {len(discoveries)} are significant at a false discovery rate of 5 %."
    head = ["", "minus", "difference of success", "superiority", "p", "verdict"]
    return f"{text}\n\n{markdown(head, rows)}"


def draw(known: dict[str, Result], out: Path) -> bool:
    """Draw the success of each seed by the number of rooms; return whether there is any."""
    groups = {
        line: [_by_room(r) for r in seeds_of(known, f"horizon/{name}")]
        for name, line in LINES.items()
    }
    groups = {line: own for line, own in groups.items() if own}
    before = known.get("horizon/before")
    if groups:
        rooms = [f"{n} rooms" for n in ROOMS]
        levels = [] if before is None else _by_room(before)
        draw_dots(groups, rooms, levels, out, ylabel="success with 40 turns")
    return bool(groups)
