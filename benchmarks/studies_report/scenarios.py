"""Study of scenarios: before, after SFT and after RL, by turns allowed and pass@k."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from report_statistics import sign_flip_p
from report_tables import Result, markdown
from studies_cpu_plan import CPU_SCENARIOS
from studies_plan import FEW_SEEDS, FEW_UPDATES, SCENARIO_SEEDS, SCENARIOS

from studies_report.algorithms import seeds_of
from studies_report.asynchronous import tiny_results
from studies_report.comparison import significant
from studies_report.figures import Line, draw_panels

__all__ = [
    "LINES",
    "after_few",
    "draw",
    "draw_few",
    "few_table",
    "predictions",
    "results_table",
    "stage_means",
    "tiny_table",
]

LINES = {
    "before": Line("before", "#777777", ":"),
    "sft": Line("after SFT", "#e69f00", "--"),
    "rl": Line("after RL", "#0072b2", "-"),
}


def stage_means(results: list[Result], stage: str, k: int = 1) -> float:
    """Return pass@k of a stage, the mean over seeds."""
    return fmean(r["stages"][stage]["pass"][str(k)] for r in results)


def results_table(known: dict[str, Result]) -> str:
    """The three scenarios on a GPU, and the predictions of the plan."""
    table = _table(known, "scenarios/", SCENARIOS)
    return f"{table}\n\n{predictions(known)}" if table else "No run is done."


def few_table(known: dict[str, Result]) -> str:
    """The same after few updates of SFT, with the pilot that chose their number, and the tests."""
    table = _table(known, "few/", SCENARIOS)
    parts = [_pilot(known), table, _few_tests(known) if table else ""]
    return "\n\n".join(part for part in parts if part) or "No run is done."


def _pilot(known: dict[str, Result]) -> str:
    rows = []
    for name in SCENARIOS:
        results = [known.get(f"few/pilot-{name}-{count}") for count in FEW_UPDATES]
        if any(results):
            shares = ["" if r is None else _percent([stage_means([r], "sft")]) for r in results]
            rows.append([name, *shares])
    head = ["a single try in the pilot, by updates of SFT", *map(str, FEW_UPDATES)]
    return markdown(head, rows) if rows else ""


class Paired(NamedTuple):
    """A single try after RL minus one after SFT of the same run."""

    difference: float
    p: float


def after_few(known: dict[str, Result]) -> dict[str, Paired | None]:
    """Return the tests of few/; None if a seed is missing."""
    tests: dict[str, Paired | None] = {}
    for name in SCENARIOS:
        results = seeds_of(known, f"few/{name}")
        own = [stage_means([r], "rl") - stage_means([r], "sft") for r in results]
        complete = len(own) == FEW_SEEDS
        tests[name] = Paired(fmean(own), sign_flip_p(own)) if complete else None
    return tests


def _few_tests(known: dict[str, Result]) -> str:
    tests = after_few(known)
    discoveries, rows = significant(tests, len(SCENARIOS)), []
    for name, test in tests.items():
        if test is not None:
            judged = "holds" if test.difference > 0 else "does not hold"
            judged = judged if name in discoveries else "not significant"
            change = f"{100 * test.difference:+.1f} points"
            rows.append([f"RL raises a single try in {name}", change, f"{test.p:.4f}", judged])
    if not rows:
        return "The tests are made when all seeds of a scenario are done."
    return markdown(["predicted", "after RL minus after SFT", "p", "verdict"], rows)


def tiny_table(known: dict[str, Result]) -> str:
    """The scenarios that the tiny model trains on a CPU."""
    del known
    table = _table(tiny_results("scenarios"), "scenarios/tiny/", CPU_SCENARIOS)
    return table or "No run is done."


def _table(known: dict[str, Result], prefix: str, names: Iterable[str]) -> str:
    rows: list[list[str]] = []
    passes: list[str] = []
    for name in names:
        results = seeds_of(known, f"{prefix}{name}")
        for stage, line in LINES.items() if results else ():
            stages = [r["stages"][stage] for r in results]
            passes = list(stages[0]["pass"])
            limit = len(stages[0]["within"])
            shares = [_percent(s["within"][turns - 1] for s in stages) for turns in (1, 2, 4)]
            tries = [_percent(s["pass"][k] for s in stages) for k in passes]
            turns = f"{fmean(s['turns'] for s in stages):.1f} of {limit}"
            first = name if stage == "before" else ""
            seeds = str(len(results)) if first else ""
            rows.append([first, line.label, *shares, *tries, turns, seeds])
    if not rows:
        return ""
    within = [f"within {turns}" for turns in ("1 turn", "2 turns", "4 turns")]
    # a single try has all turns
    tries = ["all turns (pass@1)", *(f"pass@{k}" for k in passes[1:])]
    return markdown(["", "", *within, *tries, "turns", "seeds"], rows)


def _percent(shares: Iterable[float]) -> str:
    return f"{100 * fmean(shares):.1f} %"


def predictions(known: dict[str, Result]) -> str:
    """What the plan predicted for the GPU, and the direction of what came out."""
    outcomes: dict[str, list[bool]] = {"sft": [], "rl": [], "sharper": []}
    for name in SCENARIOS:
        results = seeds_of(known, f"scenarios/{name}")
        if len(results) < SCENARIO_SEEDS:
            return "The predictions are judged when all seeds are done."
        before, sft, rl = (stage_means(results, stage) for stage in LINES)
        wider = stage_means(results, "rl", 8) - stage_means(results, "sft", 8)
        outcomes["sft"].append(sft > before)
        outcomes["rl"].append(rl > sft)
        outcomes["sharper"].append(rl - sft > max(0.0, wider))
    texts = {
        "sft": "SFT raises a single try in all three",
        "rl": "RL raises it further in at least two",
        "sharper": "RL raises a single try by more than pass@8",
    }
    rows = [[text, f"{sum(outcomes[key])} of 3"] for key, text in texts.items()]
    return markdown(["predicted", "scenarios whose mean has this direction"], rows)


def draw_few(known: dict[str, Result], out: Path) -> bool:
    """Draw the same after few updates of SFT."""
    return draw(known, out, "few")


def draw(known: dict[str, Result], out: Path, study: str = "scenarios") -> bool:
    """Draw the share solved by turns allowed; return whether there is any."""
    panels = {}
    for name in SCENARIOS:
        results = seeds_of(known, f"{study}/{name}")
        if results:
            panels[name] = {
                line: [r["stages"][stage]["within"] for r in results]
                for stage, line in LINES.items()
            }
    if panels:
        turns = range(1, 1 + SCENARIOS["TextCraft"].kwargs["max_turns"])
        positions = dict.fromkeys(LINES.values(), turns)
        labels = {"ylabel": "success", "xlabel": "turns allowed"}
        draw_panels(panels, out, positions=positions, width=1, **labels)
    return bool(panels)
