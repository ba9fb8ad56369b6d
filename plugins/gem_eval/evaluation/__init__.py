"""Evaluation: how well a player does on environments, with how much certainty, and beside whom.

`plan` says what is played, `run` plays it into a record that a killed run is gone on from, `statistics` has pass@k, pass^k and
the bootstrap by seed, `score` is one row of a table, `compare` sets two evaluations against each other, `scaling` draws score
against compute.
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
