"""`gem-rl wrappers`: list the wrappers by the names that `--wrappers` and YAML files take."""

from __future__ import annotations

import argparse
import json

from gem_core.cli.terminal import say, table, width
from gem_core.env.wrapper_stack import wrappers

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = "list the wrappers"
EXAMPLES = ("gem-rl wrappers", "gem-rl wrappers --json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the output format."""
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")


def run(args: argparse.Namespace) -> int:
    """Print the wrappers as a table or JSON."""
    specs = wrappers.all().values()
    if args.json:
        facts = ("name", "kind", "extra", "summary")
        say(json.dumps([{fact: getattr(spec, fact) for fact in facts} for spec in specs], indent=2))
        return 0
    rows = [(s.name, s.kind, s.extra or "-", s.summary) for s in specs]
    say(table(("NAME", "KIND", "EXTRA", "SUMMARY"), rows, width()))
    return 0
