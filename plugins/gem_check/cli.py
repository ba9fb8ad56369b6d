"""`gem-rl check`: whether environments keep the contract, one sentence for each thing that is wrong.

Exit code: 0 where all that were checked keep it; 1 where one does not, or none could be checked; 2 for a mistake.
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
    """Which, and how thoroughly."""
    parser.add_argument("pattern", help="an id, part of one, a pattern with * and ?, or a mixture")
    parser.add_argument(
        "--here",
        action="store_true",
        help="leave out the check in other processes, which takes seconds",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print a JSON object: problems by id, and why ids were left out",
    )


def run(args: argparse.Namespace) -> int:
    """Prints a line for each environment; 1 where any has a problem, or all were left out."""
    found: dict[str, list[dict[str, str]]] = {}
    left_out: dict[str, str] = {}
    for id in _chosen(args.pattern):
        try:
            problems = find_problems(id, processes=not args.here)
        except MissingDependencyError as error:
            left_out[id] = str(error)
            if not args.json:
                say(f"left out  {id}: {error}")
            continue
        found[id] = [asdict(problem) for problem in problems]
        if not args.json:
            say(f"{'ok' if not problems else 'problems':9} {id}")
            for problem in problems:
                say(f"    {problem}")
    bad = sum(bool(problems) for problems in found.values())
    if args.json:
        say(json.dumps({"problems": found, "left_out": left_out}, indent=2))
    elif found:
        say(
            f"{len(found) - bad} of {len(found)} keep the contract"
            + (f"; {len(left_out)} left out" if left_out else "")
        )
    if not found:
        print(
            f"gem-rl: nothing was checked: {len(left_out)} left out, for packages that are not there",
            file=sys.stderr,
        )
    return 1 if bad or not found else 0


def _chosen(pattern: str) -> list[str]:
    known = environments.all()
    if pattern in known:
        return [pattern]
    ids = list_envs(pattern)
    if ids:
        return ids
    if is_mixture(pattern) and ":" in pattern:
        return [spec(pattern).id]
    raise UnknownNameError("environment", pattern, tuple(known), "`gem-rl envs` lists them all.")
