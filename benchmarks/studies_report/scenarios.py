"""Study of scenarios: before, after SFT and after RL, by turns allowed and pass@k."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from report_tables import Result, markdown
from studies_cpu_plan import CPU_SCENARIOS
from studies_plan import SCENARIO_SEEDS, SCENARIOS

from studies_report.algorithms import seeds_of
from studies_report.asynchronous import tiny_results
from studies_report.figures import Line, draw_panels

__all__ = [
    "LINES",
    "draw",
    "draw_few",
    "few_table",
    "gains",
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


def results_table(known: dict[str, Result], study: str = "scenarios") -> str:
    """The three scenarios on a GPU, and the predictions of the plan."""
    table = _table(known, f"{study}/", SCENARIOS)
    return f"{table}\n\n{predictions(known, study)}" if table else "No run is done."


def few_table(known: dict[str, Result]) -> str:
    """The same after few updates of SFT."""
    return results_table(known, "few")


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


def gains(known: dict[str, Result], study: str) -> dict[str, list[bool]] | None:
    """Return what the plan predicts, for each scenario; None if a seed is missing."""
    outcomes: dict[str, list[bool]] = {"sft": [], "rl": [], "sharper": []}
    for name in SCENARIOS:
        results = seeds_of(known, f"{study}/{name}")
        if len(results) < SCENARIO_SEEDS:
            return None
        before, sft, rl = (stage_means(results, stage) for stage in LINES)
        wider = stage_means(results, "rl", 8) - stage_means(results, "sft", 8)
        outcomes["sft"].append(sft > before)
        outcomes["rl"].append(rl > sft)
        outcomes["sharper"].append(rl - sft > max(0.0, wider))
    return outcomes


def predictions(known: dict[str, Result], study: str = "scenarios") -> str:
    """What the plan predicted for the GPU, and what came out."""
    outcomes = gains(known, study)
    if outcomes is None:
        return "The predictions are judged when all seeds are done."
    texts = {
        "sft": ("SFT raises a single try in all three", 3),
        "rl": ("RL raises it further in at least two", 2),
        "sharper": ("RL raises a single try by more than pass@8", 3),
    }
    rows = []
    for key, (text, least) in texts.items():
        count = sum(outcomes[key])
        rows.append([text, f"{count} of 3", "holds" if count >= least else "does not hold"])
    return markdown(["predicted", "scenarios", "verdict"], rows)


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
        labels = {"ylabel": "solved", "xlabel": "turns allowed"}
        draw_panels(panels, out, positions=positions, width=1, **labels)
    return bool(panels)
