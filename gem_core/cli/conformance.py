"""`gem-rl conformance NAME`: golden episodes through an installed trainer's own code, as a table of what holds."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from gem_core.adapter_kit.conformance import Result, report
from gem_core.adapter_kit.conformance import run as run_kit
from gem_core.adapter_kit.declaration import adapters, probe
from gem_core.cli.terminal import say
from gem_core.errors import ConfigError

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "check that an installed trainer credits every token as gem promises"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which adapter, and where the table goes."""
    parser.add_argument("name", help="an adapter, as `gem-rl adapters` lists them")
    parser.add_argument(
        "--no-ranks", action="store_true", help="leave out the checks that start several processes"
    )
    parser.add_argument("--out", type=Path, help="also write the table to this file")


def run(args: argparse.Namespace) -> int:
    """Prints each check as it ends, then the table; exit code 1 where one failed."""
    adapter = adapters.get(args.name)
    status = probe(adapter)
    missing = "; ".join(status.missing) or "it is not written yet"
    refusal = f"the adapter {adapter.name!r} cannot be checked here: {missing}. `gem-rl adapters {adapter.name}` says how to install it"
    if not status.supported or adapter.status != "ready":
        raise ConfigError(refusal)
    try:  # where only part of what it names is missing, for instance on another kind of machine, its own code decides
        harness = importlib.import_module(f"{adapter.package}.conformance").harness()
    except ImportError as error:
        raise ConfigError(f"{refusal} ({error})") from error
    results = run_kit(harness, ranks=not args.no_ranks, progress=_show)
    table = report(harness, results)
    say(f"\n{table}")
    if args.out is not None:
        args.out.write_text(table + "\n", encoding="utf-8")
    failed = sum(r.outcome == "FAILED" for r in results)
    say(f"\n{len(results) - failed} of {len(results)} checks hold or are refused as stated.")
    return int(failed > 0)


def _show(result: Result) -> None:
    say(f"{result.outcome:8} {result.case}")
