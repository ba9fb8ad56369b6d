"""Study of a larger model: return and success before and after training, and the predictions."""

from __future__ import annotations

from statistics import fmean

from report_tables import Result, markdown
from studies_plan import LARGER_ON, LARGER_RATES, LARGER_SEEDS

from studies_report.algorithms import ALGORITHMS, seeds_of

__all__ = ["predictions", "results_table"]


def results_table(known: dict[str, Result]) -> str:
    """Tables of the means on held-out seeds, with the range over seeds, and of the predictions."""
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
    head = ["environment", "algorithm", "return (range over seeds)", "success", "seeds"]
    return f"{markdown(head, rows)}\n\n{predictions(known)}"


def predictions(known: dict[str, Result]) -> str:
    """Table of the plan's predictions, with what was measured."""
    names = [f"{env}-before" for env in LARGER_ON]
    names += [f"{e}-{a}-{s}" for e in LARGER_ON for a in LARGER_RATES for s in range(LARGER_SEEDS)]
    missing = sum(f"larger/{name}" not in known for name in names)
    if missing:
        return f"The predictions are judged when all runs are done; {missing} are missing."
    before = {env: known[f"larger/{env}-before"]["evaluation"] for env in LARGER_ON}
    returns = {
        (env, name): [r["evaluation"]["return"] for r in seeds_of(known, f"larger/{env}-{name}")]
        for env in LARGER_ON
        for name in LARGER_RATES
    }
    sums = before["chain_sum"]["success"]
    worse = [
        f"{ALGORITHMS[name].label} on {env}"
        for (env, name), own in returns.items()
        if env in ("GuessTheNumber", "Hangman") and fmean(own) <= before[env]["return"]
    ]
    above = [
        f"{ALGORITHMS[name].label} on {env}"
        for (env, name), own in returns.items()
        if name != "rebn" and min(own) > max(returns[env, "rebn"])
    ]
    rows = [
        [
            "Before training, the success on chain_sum is above 50 %.",
            f"{100 * sums:.1f} %",
            sums > 0.5,
        ],
        [
            "The mean return of every algorithm is above that of the untrained model on "
            "GuessTheNumber and on Hangman.",
            f"except {', '.join(worse)}" if worse else "all are",
            not worse,
        ],
        [
            "On no environment is REINFORCE or GRPO above ReBN.",
            ", ".join(above) or "none is",
            not above,
        ],
    ]
    judged = [[text, found, "holds" if held else "does not hold"] for text, found, held in rows]
    return markdown(["predicted", "measured", "verdict"], judged)
