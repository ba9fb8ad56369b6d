"""`gem-rl tools`: list the registered tools and whether they work on this machine."""

from __future__ import annotations

import argparse
import json

from gem_core.cli.terminal import say, table, width
from gem_core.errors import GemError

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = "list the tools and their status on this machine"
EXAMPLES = ("gem-rl tools", "gem-rl tools --json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the output format."""
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")


def run(args: argparse.Namespace) -> int:
    """Print the tools as a table or as JSON."""
    from gem_tools import ToolSpec, tools

    def status(spec: ToolSpec) -> str:
        try:
            get_status = getattr(spec.load(), "status", None)
            return str(get_status()) if get_status is not None else "ready"
        except GemError as error:
            return str(error)

    names = ("name", "extra", "status", "summary")
    rows = [(spec.name, spec.extra, status(spec), spec.summary) for spec in tools.all().values()]
    if args.json:
        say(json.dumps([dict(zip(names, row, strict=True)) for row in rows], indent=2))
        return 0
    cells = [(name, extra or "-", state, summary) for name, extra, state, summary in rows]
    say(table(tuple(name.upper() for name in names), cells, width()))
    return 0
