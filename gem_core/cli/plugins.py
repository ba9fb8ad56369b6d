"""`gem-rl plugins`: what is plugged in, where it came from, and what was left out."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from gem_core.cli.terminal import say, table, width
from gem_core.plugins.manager import installed_plugins

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "list the plugins"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Whether a program is reading."""
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")


def run(args: argparse.Namespace) -> int:
    """Prints the table, or the list."""
    plugins = installed_plugins()
    if args.json:
        say(json.dumps([asdict(plugin) for plugin in plugins], indent=2))
        return 0
    rows = [
        (
            p.name,
            p.origin,
            ", ".join(p.hooks) if p.loaded else "left out by GEM_PLUGINS or GEM_PLUGINS_BLOCK",
        )
        for p in plugins
    ]
    say(table(("NAME", "FROM", "HOOKS"), rows, width()))
    return 0
