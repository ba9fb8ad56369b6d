"""`gem-rl envs`: the environments there are, with what is known of each without importing it."""

from __future__ import annotations

import argparse
import json

from gem_core.cli.terminal import say, table, width
from gem_core.errors import UnknownNameError
from gem_core.registry import environments, list_envs

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "list the environments"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A pattern, and whether a program is reading."""
    parser.add_argument("pattern", nargs="?", default="*", help="part of an id, or a pattern with * and ?")
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")


def run(args: argparse.Namespace) -> int:
    """Prints the table, or the list."""
    known = environments.all()
    specs = [known[id] for id in list_envs(args.pattern)]
    if not specs and args.pattern != "*":
        raise UnknownNameError("environment", args.pattern, tuple(known), "`gem-rl envs` lists them all.")
    if args.json:
        facts = ("id", "turns", "reward", "data", "extra", "deterministic", "summary")
        say(json.dumps([{fact: getattr(spec, fact) for fact in facts} for spec in specs], indent=2))
        return 0
    rows = [(s.id, "-" if s.turns is None else str(s.turns), s.reward, s.data, s.extra or "-", s.summary) for s in specs]
    say(table(("ID", "TURNS", "REWARD", "DATA", "EXTRA", "SUMMARY"), rows, width()))
    return 0
