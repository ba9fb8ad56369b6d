"""The tables and learning curves of algorithms/ and ratio/."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from algorithms_plan import Run
from report_tables import Result, markdown, results_under
from studies_plan import ENVIRONMENTS, RATIO_ON, SEEDS

from studies_report.comparison import Comparison, compare, significant, verdict, with_interval
from studies_report.figures import Line, draw_panels

__all__ = [
    "ALGORITHMS",
    "ALGORITHM_TESTS",
    "RATIO_TESTS",
    "SATURATED",
    "against_rebn",
    "draw",
    "ratio_table",
    "results_table",
    "returns_of",
    "saturated",
    "seeds_of",
    "tests_table",
    "untrained_returns",
]

ALGORITHMS = {
    "rebn": Line("ReBN", "#0072b2", "-"),
    "reinforce": Line("REINFORCE", "#d55e00", "-"),
    "grpo": Line("GRPO", "#009e73", "--"),
    "rloo": Line("RLOO", "#e69f00", "-."),
    "reinforce++": Line("REINFORCE++", "#56b4e9", "--"),
    "ppo": Line("PPO", "#cc79a7", "-."),
}
"""In the order of the tables; colours of Okabe and Ito."""
ALGORITHM_TESTS = len(ENVIRONMENTS) * (len(ALGORITHMS) - 1)
SATURATED = 0.01
"""A difference of returns with which an environment cannot tell algorithms apart."""
RATIO_ALGORITHMS = ("rebn", "grpo", "ppo")
RATIO_TESTS = len(RATIO_ON) * len(RATIO_ALGORITHMS)


def seeds_of(known: dict[str, Result], cell: str) -> list[Result]:
    """Return the results of a cell, in the order of their seeds."""
    names = (f"{cell}-{seed}" for seed in range(SEEDS))
    return [known[name] for name in names if name in known]


def returns_of(known: dict[str, Result], cell: str) -> list[float]:
    """Return the returns on held-out seeds."""
    return [r["evaluation"]["return"] for r in seeds_of(known, cell)]


def untrained_returns(before: Result) -> list[float]:
    """Return the untrained model's returns on the seeds that trained models are evaluated on."""
    returns = before["evaluation"]["returns"][: Run.evaluated]
    return [own for own in returns if own is not None]


def saturated(known: dict[str, Result]) -> list[str]:
    """Return the environments on which all algorithms end within `SATURATED` of each other."""
    cells = {
        env: [returns_of(known, f"algorithms/{env}-{name}") for name in ALGORITHMS]
        for env in ENVIRONMENTS
    }
    means = {env: [fmean(own) for own in cell] for env, cell in cells.items() if all(cell)}
    return [env for env, own in means.items() if max(own) - min(own) <= SATURATED]


def results_table(known: dict[str, Result]) -> str:
    """Return and success on held-out seeds, before and after training."""
    rows = []
    for env in ENVIRONMENTS:
        own = []
        before = known.get(f"before/{env}")
        if before is not None:
            success = before["evaluation"]["success"]
            level = fmean(untrained_returns(before))
            own.append(["before", f"{level:.3f}", f"{100 * success:.1f} %", "", "", ""])
        for name, line in ALGORITHMS.items():
            results = seeds_of(known, f"algorithms/{env}-{name}")
            evaluations = [r["evaluation"] for r in results]
            if evaluations:
                returns = with_interval([e["return"] for e in evaluations])
                success = with_interval([e["success"] for e in evaluations], percent=True)
                below = ""
                if before is not None:
                    below = str(sum(e["return"] < level for e in evaluations))
                training = with_interval([fmean(r["curve"]["return"]) for r in results])
                own.append([line.label, returns, success, training, below, str(len(results))])
        rows += [["" if i else env, *row] for i, row in enumerate(own)]
    if not rows:
        return "No run is done."
    training = "return in training, all updates"
    head = ["", "", "return", "success", training, "seeds below the untrained model", "seeds"]
    return markdown(head, rows)


def against_rebn(known: dict[str, Result]) -> dict[tuple[str, str], Comparison | None]:
    """Compare ReBN with each other algorithm: the tests of the plan."""
    return {
        (env, name): compare(
            returns_of(known, f"algorithms/{env}-rebn"),
            returns_of(known, f"algorithms/{env}-{name}"),
        )
        for env in ENVIRONMENTS
        for name in ALGORITHMS
        if name != "rebn"
    }


def tests_table(known: dict[str, Result]) -> str:
    """ReBN minus each other algorithm."""
    return _table(against_rebn(known), ALGORITHM_TESTS, "ReBN minus", ("ReBN", "the other"))


def ratio_table(known: dict[str, Result]) -> str:
    """Several clipped steps per batch minus a single one, for each algorithm."""
    comparisons = {
        (env, name): compare(
            returns_of(known, f"ratio/{env}-{name}"), returns_of(known, f"algorithms/{env}-{name}")
        )
        for env in RATIO_ON
        for name in RATIO_ALGORITHMS
    }
    return _table(comparisons, RATIO_TESTS, "several steps minus one", ("several", "one"))


def _table(
    comparisons: dict[tuple[str, str], Comparison | None],
    planned: int,
    title: str,
    sides: Sequence[str],
) -> str:
    discoveries = significant(comparisons, planned)
    rows = []
    for key, c in comparisons.items():
        if c is None:
            continue
        higher = f"{sides[0] if c.difference > 0 else sides[1]} higher"
        judged = verdict(c, higher, key in discoveries, SEEDS)
        numbers = [c.effect(), f"{c.superiority:.2f}", f"{c.p:.4f}", judged]
        rows.append([key[0], ALGORITHMS[key[1]].label, *numbers, f"{c.seeds[0]}, {c.seeds[1]}"])
    text = f"{len(rows)} of {planned} tests have four seeds or more on both sides"
    if not rows:
        return f"{text}."
    text += f"; {len(discoveries)} are significant at a false discovery rate of 5 %."
    head = ["", title, "difference", "superiority", "p", "verdict", "seeds"]
    return f"{text}\n\n{markdown(head, rows)}"


def draw(known: dict[str, Result], out: Path) -> bool:
    """Draw the return in training, one panel per environment; return whether there is any."""
    panels: dict[str, dict[Line, list[list[float]]]] = {}
    levels: dict[str, Any] = {}
    for env in ENVIRONMENTS:
        cells = {name: seeds_of(known, f"algorithms/{env}-{name}") for name in ALGORITHMS}
        curves = {
            ALGORITHMS[name]: [r["curve"]["return"] for r in results]
            for name, results in cells.items()
            if results
        }
        if curves:
            panels[env] = curves
            before = results_under(known, "before/").get(env)
            if before is not None:
                levels[env] = fmean(untrained_returns(before))
    if panels:
        draw_panels(panels, out, ylabel="return in training", levels=levels)
    return bool(panels)
