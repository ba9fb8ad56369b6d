"""Study of a larger model: return and success before and after training."""

from __future__ import annotations

from statistics import fmean

from report_tables import Result, markdown
from studies_plan import LARGER_ON, LARGER_RATES

from studies_report.algorithms import ALGORITHMS, seeds_of

__all__ = ["results_table"]


def results_table(known: dict[str, Result]) -> str:
    """Means on held-out seeds, with the range of the return over seeds."""
    rows = []
    for env in LARGER_ON:
        before = known.get(f"larger/{env}-before")
        cells = {"before": [before] if before is not None else []}
        cells |= {
            ALGORITHMS[name].label: seeds_of(known, f"larger/{env}-{name}") for name in LARGER_RATES
        }
        own = []
        for label, results in cells.items():
            if results:
                evaluations = [r["evaluation"] for r in results]
                returns = [e["return"] for e in evaluations]
                success = fmean(e["success"] for e in evaluations)
                text = f"{fmean(returns):.3f}"
                if len(returns) > 1:
                    text += f" ({min(returns):.3f} to {max(returns):.3f})"
                seeds = "" if label == "before" else str(len(results))
                own.append([label, text, f"{100 * success:.1f} %", seeds])
        rows += [["" if i else env, *row] for i, row in enumerate(own)]
    if not rows:
        return "No run is done."
    return markdown(
        ["environment", "algorithm", "return (range over seeds)", "success", "seeds"], rows
    )
