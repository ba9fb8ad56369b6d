"""Study of a larger model: return and success before and after training, and the predictions."""

from __future__ import annotations

from statistics import fmean

from report_tables import Result, markdown
from studies_plan import LARGER_ON, LARGER_RATES, LARGER_SEEDS

from studies_report.algorithms import ALGORITHMS, seeds_of

__all__ = ["predictions", "results_table"]


def results_table(known: dict[str, Result]) -> str:
    """Means on held-out seeds with the range of the return over seeds, and the predictions."""
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
    """What the plan predicted, and what came out."""
    before = {env: known.get(f"larger/{env}-before") for env in LARGER_ON}
    returns = {
        (env, name): [r["evaluation"]["return"] for r in seeds_of(known, f"larger/{env}-{name}")]
        for env in LARGER_ON
        for name in LARGER_RATES
    }
    missing = sum(result is None for result in before.values())
    missing += sum(LARGER_SEEDS - len(seeds) for seeds in returns.values())
    if missing:
        return f"The predictions are judged when all runs are done; {missing} are missing."
    untrained = {env: result["evaluation"] for env, result in before.items() if result}
    learnt = [
        fmean(returns[env, name]) > untrained[env]["return"]
        for env in ("GuessTheNumber", "Hangman")
        for name in LARGER_RATES
    ]
    above = [
        f"{ALGORITHMS[name].label} on {env}"
        for env, name in returns
        if name != "rebn" and min(returns[env, name]) > max(returns[env, "rebn"])
    ]
    sums = untrained["chain_sum"]["success"]
    rows = [
        ["before training, the success on chain_sum is above 50 %", f"{100 * sums:.1f} %"],
        [
            "training raises the mean return on GuessTheNumber and Hangman",
            f"in {sum(learnt)} of {len(learnt)} cases",
        ],
        ["REINFORCE and GRPO are nowhere above ReBN", ", ".join(above) or "nowhere"],
    ]
    held = (sums > 0.5, all(learnt), not above)
    judged = [[*row, "holds" if h else "does not hold"] for row, h in zip(rows, held)]
    return markdown(["predicted", "measured", "verdict"], judged)
