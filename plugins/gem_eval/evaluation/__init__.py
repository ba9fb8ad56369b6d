"""Evaluation of models and baseline players on environments, with confidence intervals.

`plan` defines the episodes, `run` plays them into a record and resumes it, `statistics` has
pass@k, pass^k and the bootstrap over seeds, `score` is one row of the results table, `compare`
compares two evaluations, `scaling` draws scores against compute.
"""

from __future__ import annotations

from gem_eval.evaluation.compare import Difference, compare
from gem_eval.evaluation.plan import Plan, chosen_envs
from gem_eval.evaluation.run import evaluate, results
from gem_eval.evaluation.score import Score, score, table_rows
from gem_eval.evaluation.statistics import Estimate, mean_by_seed, pass_at_k, pass_hat_k

__all__ = [
    "Difference",
    "Estimate",
    "Plan",
    "Score",
    "chosen_envs",
    "compare",
    "evaluate",
    "mean_by_seed",
    "pass_at_k",
    "pass_hat_k",
    "results",
    "score",
    "table_rows",
]
