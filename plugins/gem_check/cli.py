"""`gem-rl check`: check that environments keep the `Env` contract; one sentence per problem.

Exit code: 0 if all checked environments pass; 1 if one fails or none could be checked; 2 for a
usage error.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from gem_check.checker import examine
from gem_check.subject import STEP_LIMIT
from gem_core.cli.arguments import env_arguments
from gem_core.cli.terminal import say, styled
from gem_core.env.ids import is_mixture
from gem_core.env.registry import environments, list_envs, spec
from gem_core.errors import MissingDependencyError, UnknownNameError

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = "check that environments keep the contract"
EXAMPLES = (
    "gem-rl check game:Wordle-v0-easy",
    "gem-rl check lock.py:Lock --here",
    "gem-rl check 'game:*' --json",
    "gem-rl check lock.py:Lock --args '{\"max_turns\": 6}'",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the environments, the checks to run and the output format."""
    parser.add_argument(
        "pattern",
        metavar="ENV",
        help="an id, part of one, a pattern with * and ?, a mixture, or FILE.py:CLASS",
    )
    parser.add_argument(
        "--here",
        action="store_true",
        help="check in this process only: skip other_processes, which takes seconds",
    )
    parser.add_argument(
        "--args", default="", metavar="JSON", help="arguments of the environment, as a JSON object"
    )
    parser.add_argument(
        "--step-limit",
        type=float,
        default=STEP_LIMIT,
        metavar="S",
        help=f"seconds that one call of the environment may take (default {STEP_LIMIT:g})",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print a JSON object: problems and notes per id, and why ids were skipped",
    )


def run(args: argparse.Namespace) -> int:
    """Print a line per environment; return 1 if any has a problem or all were skipped."""
    checked: dict[str, list[dict[str, str]]] = {}
    notes: dict[str, tuple[str, ...]] = {}
    skipped: dict[str, str] = {}
    arguments = env_arguments(args.args)
    for id in _chosen(args.pattern):
        try:
            report = examine(
                id, processes=not args.here, env_kwargs=arguments, step_limit=args.step_limit
            )
        except MissingDependencyError as error:
            skipped[id] = str(error)
            if not args.json:
                say(f"skipped   {id}: {error}")
            continue
        checked[id] = [asdict(problem) for problem in report.problems]
        notes[id] = report.notes
        if not args.json:
            good = styled("ok       ", "green")
            say(f"{good if not report.problems else styled('problems ', 'red')} {id}")
            for problem in report.problems:
                say(f"    {problem}")
            for note in report.notes:
                say(f"    note: {note}")
    failed = sum(bool(problems) for problems in checked.values())
    if args.json:
        say(json.dumps({"problems": checked, "notes": notes, "skipped": skipped}, indent=2))
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
