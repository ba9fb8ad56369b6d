"""Table of critic/: the predictions about PPO, and what was measured."""

from __future__ import annotations

from statistics import fmean

from report_tables import Result, markdown
from studies_plan import SEEDS

from studies_report.algorithms import seeds_of
from studies_report.comparison import compare, significant
from studies_report.horizon import falls

__all__ = ["LEARNED", "results_table"]

TRAINED, LONG, QUIET = "PayLate-trained", "PayLate-0.95", "PayLast-quiet"
FASTER = {
    TRAINED: "PayLate, critic trained before: learns faster than PPO in credit/",
    LONG: "PayLate, λ = 0.95: learns faster than PPO in credit/",
}
LEARNED = 1.75
"""A critic whose loss is below this has learned what the key is worth."""


def results_table(known: dict[str, Result]) -> str:
    """The predictions beside what was measured, and the success of each seed."""
    cells = {name: seeds_of(known, f"critic/{name}") for name in (*FASTER, QUIET)}
    if not any(cells.values()):
        return "No run is done."
    rows = [*_faster(known, cells), _quiet(known, cells[QUIET])]
    table = markdown(["predicted", "measured", "verdict", "success of each seed, held-out"], rows)
    return "\n\n".join(part for part in (table, _critics(cells[TRAINED])) if part)


def _faster(known: dict[str, Result], cells: dict[str, list[Result]]) -> list[list[str]]:
    late = _speeds(seeds_of(known, "credit/PayLate-ppo-0.5"))
    comparisons = {name: compare(_speeds(cells[name]), late, resampled=True) for name in FASTER}
    different, rows = significant(comparisons, len(FASTER)), []
    for name, text in FASTER.items():
        c, verdict = comparisons[name], "open"
        measured = "fewer than four seeds"
        if c is not None:
            seeds = "" if min(c.seeds) == SEEDS else f" ({c.seeds[0]} and {c.seeds[1]} seeds)"
            measured = f"{c.effect()}, p = {c.p:.4f}{seeds}"
        if c is not None and name in different:
            verdict = "holds" if c.difference > 0 else "does not hold"
            verdict += ", preliminary" if min(c.seeds) < SEEDS else ""
        if name == TRAINED and not all(map(_learned, cells[TRAINED])):
            verdict = "open: not every critic has learned"
        rows.append([text, measured, verdict, _shares(cells[name])])
    return rows


def _quiet(known: dict[str, Result], quiet: list[Result]) -> list[str]:
    noisy = seeds_of(known, "credit/PayLast-ppo-0.5")
    lost, before = (sum(falls(r["curve"]["success"]) for r in own) for own in (quiet, noisy))
    measured = f"{lost} of {len(quiet)} runs lose it; in credit/ {before} of {len(noisy)}"
    return [
        "PayLast, without coins: if a run loses the door, the noise is not the reason",
        measured if quiet else "no run is done",
        "the noise is not the reason" if lost else "open",
        _shares(quiet),
    ]


def _critics(trained: list[Result]) -> str:
    if not trained:
        return ""
    losses = ", ".join(f"{_last_loss(r):.2f}" for r in trained)
    return f"The losses of the trained critics, as the mean of the last ten batches: {losses}."


def _last_loss(result: Result) -> float:
    return fmean(result["critic_losses"][-10:])


def _learned(result: Result) -> bool:
    return _last_loss(result) < LEARNED


def _speeds(results: list[Result]) -> list[float]:
    return [fmean(r["curve"]["success"]) for r in results]


def _shares(results: list[Result]) -> str:
    shares = sorted((r["evaluation"]["success"] for r in results), reverse=True)
    return ", ".join(f"{share:.0%}" for share in shares)
