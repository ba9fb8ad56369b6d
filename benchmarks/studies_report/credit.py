"""Curves of credit/, the predictions of the plan, and whether they held."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from report_statistics import bootstrap
from report_tables import Result, last, markdown
from studies_plan import CREDIT, SEEDS

from studies_report.algorithms import seeds_of
from studies_report.comparison import LEAST_SEEDS, Comparison, compare, significant
from studies_report.figures import Line, draw_panels

__all__ = ["MARGIN", "PREDICTIONS", "draw", "predictions_table", "seeds_table", "verdicts"]

LINES = {
    "episode": Line("episode-level", "#d55e00", "-"),
    "rebn-1": Line("ReBN, γ = 1", "#0072b2", "--"),
    "rebn-0.5": Line("ReBN, γ = 0.5", "#009e73", "-"),
    "ppo-0.5": Line("PPO, λ = 0.5", "#cc79a7", "-."),
}
METRICS = {"PayNow": "return", "PayLate": "success", "PayLast": "success"}
"""What "learns faster" compares: the mean over all updates of this metric in training.

Success has no noise of chance. In PayNow it needs all six doors, so the return is used there."""
MARGIN = 0.1
"""Differences of success below this count as equal."""


@dataclass(frozen=True)
class Prediction:
    """A sentence of the plan: how one method compares with another, or that it does not learn."""

    env: str
    kind: str
    """"faster", "equal", "not slower" or "does not learn"."""
    ours: str
    theirs: str = ""

    def text(self) -> str:
        ours = LINES[self.ours].label
        if not self.theirs:
            return f"{ours} does not learn"
        word = {"equal": "as fast as", "not slower": "at least as fast as"}.get(
            self.kind, "faster than"
        )
        return f"{ours} learns {word} {LINES[self.theirs].label}"


PREDICTIONS = (
    Prediction("PayNow", "faster", "rebn-0.5", "rebn-1"),
    Prediction("PayNow", "faster", "rebn-1", "episode"),
    Prediction("PayNow", "faster", "rebn-0.5", "episode"),
    Prediction("PayLate", "equal", "rebn-1", "episode"),
    Prediction("PayLate", "does not learn", "rebn-0.5"),
    Prediction("PayLate", "not slower", "ppo-0.5", "rebn-1"),
    Prediction("PayLast", "faster", "rebn-1", "episode"),
    Prediction("PayLast", "faster", "rebn-0.5", "episode"),
)


def _speeds(known: dict[str, Result], env: str, name: str) -> list[float]:
    results = seeds_of(known, f"credit/{env}-{name}")
    return [fmean(r["curve"][METRICS[env]]) for r in results]


def _gains(known: dict[str, Result], env: str, name: str) -> list[float]:
    """Return the success of the last ten updates minus that before training, per seed.

    The latter is the mean of the first updates of all runs on the environment: the model samples
    them before its first step.
    """
    every = [r for other in CREDIT for r in seeds_of(known, f"credit/{env}-{other}")]
    results = seeds_of(known, f"credit/{env}-{name}")
    return [last(r, "success") - fmean(o["curve"]["success"][0] for o in every) for r in results]


def verdicts(known: dict[str, Result]) -> dict[Prediction, tuple[str, str]]:
    """Return (evidence, verdict) of each prediction; it is open while seeds are missing."""
    pairs = [p for p in PREDICTIONS if p.theirs]
    comparisons = {
        p: compare(*(_speeds(known, p.env, own) for own in (p.ours, p.theirs)), resampled=True)
        for p in pairs
    }
    faster = {p: c for p, c in comparisons.items() if p.kind == "faster"}
    found = significant(faster, len(faster))
    rules: dict[str, Callable[[Prediction, Comparison], str]] = {
        "faster": lambda p, c: _sign(c) if p in found else "open",
        "equal": lambda p, c: _equal(c),
        "not slower": lambda p, c: "holds" if c.low > -MARGIN else _unless(c.high < 0),
    }
    judged = {}
    for prediction in PREDICTIONS:
        if not prediction.theirs:
            judged[prediction] = _learning(_gains(known, prediction.env, prediction.ours))
            continue
        c = comparisons[prediction]
        if c is None:
            judged[prediction] = ("", "open")
            continue
        verdict = rules[prediction.kind](prediction, c)
        seeds = "" if min(c.seeds) == SEEDS else f" ({c.seeds[0]} and {c.seeds[1]} seeds)"
        more = "" if min(c.seeds) == SEEDS or verdict == "open" else ", preliminary"
        judged[prediction] = (f"{c.effect()}, p = {c.p:.4f}{seeds}", verdict + more)
    return judged


def _sign(c: Comparison) -> str:
    return "holds" if c.difference > 0 else "does not hold"


def _unless(refuted: bool) -> str:
    return "does not hold" if refuted else "open"


def _equal(c: Comparison) -> str:
    return "holds" if c.low > -MARGIN and c.high < MARGIN else _unless(c.p < 0.05)


def _learning(gains: list[float]) -> tuple[str, str]:
    if len(gains) < LEAST_SEEDS:
        return "", "open"
    low, high = bootstrap(gains)
    seeds = "" if len(gains) == SEEDS else f" ({len(gains)} seeds)"
    evidence = f"success {fmean(gains):+.3f} [{low:+.3f}, {high:+.3f}]{seeds}"
    verdict = "holds" if high < MARGIN else _unless(low > MARGIN)
    more = "" if len(gains) == SEEDS or verdict == "open" else ", preliminary"
    return evidence, verdict + more


def predictions_table(known: dict[str, Result]) -> str:
    """The predictions beside what was measured."""
    rows = [
        [p.env, p.text(), evidence or "fewer than four seeds", verdict]
        for p, (evidence, verdict) in verdicts(known).items()
    ]
    return markdown(["", "predicted", "measured", "verdict"], rows)


def seeds_table(known: dict[str, Result]) -> str:
    """The success of each run on held-out seeds, from the highest to the lowest."""
    rows = []
    for env in METRICS:
        for name, line in LINES.items():
            runs = seeds_of(known, f"credit/{env}-{name}")
            shares = sorted((r["evaluation"]["success"] for r in runs), reverse=True)
            if shares:
                rows.append([env, line.label, ", ".join(f"{share:.0%}" for share in shares)])
    return markdown(["", "", "success of each seed"], rows) if rows else "No run is done."


def separation_table(known: dict[str, Result]) -> str:
    """What `python benchmarks/credit.py` prints; it needs no training."""
    import credit  # registers environments, which only this table needs

    del known
    return credit.separation_table()


def draw(known: dict[str, Result], out: Path) -> bool:
    """Draw the metric of each environment over updates; return whether there is any."""
    panels = {}
    for env, metric in METRICS.items():
        cells = {name: seeds_of(known, f"credit/{env}-{name}") for name in CREDIT}
        curves = {LINES[n]: [r["curve"][metric] for r in rs] for n, rs in cells.items() if rs}
        if curves:
            panels[env] = curves
    if panels:
        ylabel = {env: f"{METRICS[env]} in training" for env in panels}
        draw_panels(panels, out, ylabel=ylabel, each_seed=True)
    return bool(panels)
