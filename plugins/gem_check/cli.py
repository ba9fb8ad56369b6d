"""`gem-rl check`: check that environments keep the `Env` contract; one sentence per problem.

Exit code: 0 if all checked environments pass; 1 if one fails or none could be checked; 2 for a
usage error.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from gem_check.checker import find_problems
from gem_core.cli.terminal import say
from gem_core.env.ids import is_mixture
from gem_core.env.registry import environments, list_envs, spec
from gem_core.errors import MissingDependencyError, UnknownNameError

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "check that environments keep the contract"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the environments, the checks to run and the output format."""
    parser.add_argument("pattern", help="an id, part of one, a pattern with * and ?, or a mixture")
    parser.add_argument(
        "--here",
        action="store_true",
        help="skip the check in other processes, which takes seconds",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print a JSON object: the problems per id, and why ids were skipped",
    )


def run(args: argparse.Namespace) -> int:
    """Print a line per environment; return 1 if any has a problem or all were skipped."""
    checked: dict[str, list[dict[str, str]]] = {}
    skipped: dict[str, str] = {}
    for id in _chosen(args.pattern):
        try:
            problems = find_problems(id, processes=not args.here)
        except MissingDependencyError as error:
            skipped[id] = str(error)
            if not args.json:
                say(f"skipped   {id}: {error}")
            continue
        checked[id] = [asdict(problem) for problem in problems]
        if not args.json:
            say(f"{'ok' if not problems else 'problems':9} {id}")
            for problem in problems:
                say(f"    {problem}")
    failed = sum(bool(problems) for problems in checked.values())
    if args.json:
        say(json.dumps({"problems": checked, "left_out": skipped}, indent=2))
    elif checked:
        also = f"; {len(skipped)} skipped" if skipped else ""
        say(f"{len(checked) - failed} of {len(checked)} keep the contract{also}")
    if not checked:
        message = f"nothing was checked: {len(skipped)} skipped because packages are missing"
        print(f"gem-rl: {message}", file=sys.stderr)
    return 1 if failed or not checked else 0


def _chosen(pattern: str) -> list[str]:
    registered = environments.all()
    if pattern in registered:
        return [pattern]
    ids = list_envs(pattern)
    if ids:
        return ids
    if is_mixture(pattern) and ":" in pattern:
        return [spec(pattern).id]
    hint = "`gem-rl envs` lists them all."
    raise UnknownNameError("environment", pattern, tuple(registered), hint)
