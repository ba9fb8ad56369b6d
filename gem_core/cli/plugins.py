"""`gem-rl plugins`: list the plugins, their origin and hooks, loaded or blocked."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from gem_core.cli.terminal import say, table, width
from gem_core.plugins.manager import installed_plugins

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = "list the plugins"
EXAMPLES = ("gem-rl plugins", "gem-rl plugins --json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the output format."""
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")


def run(args: argparse.Namespace) -> int:
    """Print the plugins as a table or JSON."""
    plugins = installed_plugins()
    if args.json:
        say(json.dumps([asdict(plugin) for plugin in plugins], indent=2))
        return 0
    blocked = "blocked by GEM_PLUGINS or GEM_PLUGINS_BLOCK"
    rows = [(p.name, p.origin, ", ".join(p.hooks) if p.loaded else blocked) for p in plugins]
    say(table(("NAME", "FROM", "HOOKS"), rows, width()))
    return 0
