"""`gem-rl adapters`: list the trainers, what is installed or missing, and how to install it."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from gem_core.adapter_kit.declaration import AdapterStatus, adapters, probe
from gem_core.cli.terminal import say, styled, table, width

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = "list the supported trainers, and what is missing for each"
EXAMPLES = ("gem-rl adapters", "gem-rl adapters verl", "gem-rl adapters --json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the adapter name and the output format."""
    parser.add_argument("name", nargs="?", metavar="ADAPTER", help="only this adapter")
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")


def run(args: argparse.Namespace) -> int:
    """Print the adapters, then what is missing for each."""
    chosen = [adapters.get(args.name)] if args.name else list(adapters.all().values())
    statuses = [probe(adapter) for adapter in chosen]
    if args.json:
        say(json.dumps([_as_json(status) for status in statuses], indent=2))
        return 0
    if not statuses:
        say(
            "No adapters: gem is not installed (in its checkout, run: pip install .), "
            "or GEM_PLUGINS excludes them."
        )
        return 0
    rows = [
        (
            s.adapter.name,
            _state(s),
            s.installed or "-",
            f"{s.adapter.distribution}{s.adapter.versions}",
        )
        for s in statuses
    ]
    headers = ("NAME", "STATUS", "INSTALLED", "SUPPORTS")
    say(table(headers, rows, width()))
    for status in statuses:
        adapter = status.adapter
        say(f"\n{styled(adapter.name, 'cyan')}: {adapter.summary}")
        say(f"  supports: Python {adapter.python} on {', '.join(adapter.platforms)}")
        say(f"  run on a GPU: {adapter.gpu}")
        if status.missing:
            say(f"  missing: {'; '.join(status.missing)}")
            where = "" if status.installable else " on a supported machine"
            say(f"  to install it{where}:")
            for line in adapter.install:
                say(f"    {line}")
    if any(status.missing for status in statuses):
        say(
            "\nRun these lines in a checkout of gem, with one virtual environment per adapter: "
            "their pinned versions conflict."
        )
    return 0


def _state(status: AdapterStatus) -> str:
    if status.ready:
        return "ready"
    if status.adapter.status == "planned":
        return "planned"
    return "not installed" if status.installable else "cannot run here"


def _as_json(status: AdapterStatus) -> dict[str, object]:
    return {
        **asdict(status.adapter),
        "installed": status.installed,
        "supported": status.supported,
        "python_fits": status.python_fits,
        "platform_fits": status.platform_fits,
        "installable": status.installable,
        "missing": status.missing,
        "ready": status.ready,
    }
