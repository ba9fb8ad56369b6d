"""`gem-rl tools`: the tools there are, by name, and whether they work on this machine."""

from __future__ import annotations

import argparse
import json

from gem_core.cli.terminal import say, table, width
from gem_core.errors import GemError

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "list the tools, and what this machine offers them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Whether a program is reading."""
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")


def run(args: argparse.Namespace) -> int:
    """Prints the table, or the list."""
    from gem_tools import ToolSpec, tools

    def status(spec: ToolSpec) -> str:
        try:
            ask = getattr(spec.load(), "status", None)
            return str(ask()) if ask is not None else "ready"
        except GemError as error:
            return str(error)

    found = [(spec.name, spec.extra, status(spec), spec.summary) for spec in tools.all().values()]
    if args.json:
        say(
            json.dumps(
                [
                    dict(zip(("name", "extra", "status", "summary"), row, strict=True))
                    for row in found
                ],
                indent=2,
            )
        )
        return 0
    rows = [(name, extra or "-", state, summary) for name, extra, state, summary in found]
    say(table(("NAME", "EXTRA", "STATUS", "SUMMARY"), rows, width()))
    return 0
