"""Why PPO does badly in credit/: the three changes of critic/, beside the runs of credit/."""

from __future__ import annotations

from statistics import fmean

from report_tables import Result, markdown
from studies_plan import SEEDS

from studies_report.algorithms import seeds_of
from studies_report.comparison import compare, significant
from studies_report.horizon import falls

__all__ = ["results_table"]

TRAINED, LONG, QUIET = "PayLate-trained", "PayLate-0.95", "PayLast-quiet"
FASTER = {
    TRAINED: "PayLate, critic trained before: learns faster than PPO in credit/",
    LONG: "PayLate, λ = 0.95: learns faster than PPO in credit/",
}


def results_table(known: dict[str, Result]) -> str:
    """What the plan says of each change, what was measured, and the success of each seed."""
    if not any(seeds_of(known, f"critic/{name}") for name in (*FASTER, QUIET)):
        return "No run is done."
    late = _speeds(known, "credit/PayLate-ppo-0.5")
    comparisons = {name: compare(_speeds(known, f"critic/{name}"), late) for name in FASTER}
    higher = significant(comparisons, len(FASTER))
    rows = []
    for name, text in FASTER.items():
        c = comparisons[name]
        measured, verdict = "fewer than four seeds", "open"
        if c is not None:
            measured = f"{c.effect()}, p = {c.p:.4f}"
            if name in higher:
                verdict = "holds" if c.difference > 0 else "does not hold"
                verdict += "" if min(c.seeds) == SEEDS else ", preliminary"
        rows.append([text, measured, verdict, _shares(known, name)])
    quiet = seeds_of(known, f"critic/{QUIET}")
    noisy = seeds_of(known, "credit/PayLast-ppo-0.5")
    lost = sum(falls(r["curve"]["success"]) for r in quiet)
    before = sum(falls(r["curve"]["success"]) for r in noisy)
    rows.append(
        [
            "PayLast, without coins: a run loses the door, so the noise is not the reason",
            f"{lost} of {len(quiet)} runs; in credit/ {before} of {len(noisy)}",
            "holds" if lost else "open",
            _shares(known, QUIET),
        ]
    )
    return markdown(["if", "measured", "verdict", "success of each seed, held-out"], rows)


def _speeds(known: dict[str, Result], cell: str) -> list[float]:
    return [fmean(r["curve"]["success"]) for r in seeds_of(known, cell)]


def _shares(known: dict[str, Result], name: str) -> str:
    runs = seeds_of(known, f"critic/{name}")
    shares = sorted((r["evaluation"]["success"] for r in runs), reverse=True)
    return ", ".join(f"{share:.0%}" for share in shares)
