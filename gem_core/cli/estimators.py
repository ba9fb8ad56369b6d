"""`gem-rl estimators`: list the advantage estimators that `GemConfig(advantage=...)` takes."""

from __future__ import annotations

import argparse
import inspect
import json

from gem_core.cli.terminal import say, table, width
from gem_core.training.advantage import estimators

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = "list the advantage estimators"
EXAMPLES = ("gem-rl estimators", "gem-rl estimators --json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the output format."""
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")


def run(args: argparse.Namespace) -> int:
    """Print the estimators, what each needs, and the arguments that it takes."""
    rows = []
    for estimator in estimators.all().values():
        parameters = inspect.signature(estimator.function).parameters.values()
        arguments = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "gather"]
        summary = (inspect.getdoc(estimator.function) or "").partition("\n")[0]
        rows.append((estimator.name, sorted(estimator.needs), arguments, summary))
    if args.json:
        names = ("name", "needs", "arguments", "summary")
        say(json.dumps([dict(zip(names, row, strict=True)) for row in rows], indent=2))
        return 0
    cells = [(name, ", ".join(n) or "-", ", ".join(a), text) for name, n, a, text in rows]
    say(table(("NAME", "NEEDS", "ARGUMENTS", "SUMMARY"), cells, width()))
    return 0
