"""`gem-rl adapters`: for each trainer what is installed, what is missing, where it can be had, and the lines that install it."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from gem_core.adapter_kit.declaration import AdapterStatus, adapters, probe
from gem_core.cli.terminal import say, table, width

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "list the trainers gem connects to, and what each still needs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One adapter or all, and whether a program is reading."""
    parser.add_argument("name", nargs="?", help="only this adapter")
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")


def run(args: argparse.Namespace) -> int:
    """Prints the table, then what is missing."""
    chosen = [adapters.get(args.name)] if args.name else list(adapters.all().values())
    found = [probe(adapter) for adapter in chosen]
    if args.json:
        say(json.dumps([_as_json(status) for status in found], indent=2))
        return 0
    if not found:
        say(
            "There are none: gem is not installed (in its checkout: pip install .), or GEM_PLUGINS leaves them out."
        )
        return 0
    rows = [
        (
            s.adapter.name,
            s.adapter.status,
            s.installed or "-",
            f"{s.adapter.distribution}{s.adapter.versions}",
            s.adapter.python,
            ", ".join(s.adapter.platforms),
            s.adapter.summary,
        )
        for s in found
    ]
    say(
        table(
            ("NAME", "STATUS", "INSTALLED", "FITS", "PYTHON", "PLATFORMS", "WAY IN"), rows, width()
        )
    )
    for status in found:
        if status.missing:
            say(f"\n{status.adapter.name}: missing {'; '.join(status.missing)}")
            say(f"  to install it{'' if status.can_be_had else ', elsewhere'}:")
            for line in status.adapter.install:
                say(f"    {line}")
    if any(status.missing for status in found):
        say(
            "\nThe lines are for a checkout of gem, each in a virtual environment of its own: the pins exclude each other."
        )
    return 0


def _as_json(status: AdapterStatus) -> dict[str, object]:
    return {
        **asdict(status.adapter),
        "installed": status.installed,
        "supported": status.supported,
        "python_fits": status.python_fits,
        "platform_fits": status.platform_fits,
        "can_be_had": status.can_be_had,
        "missing": status.missing,
        "ready": status.ready,
    }
