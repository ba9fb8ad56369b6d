"""`gem-rl conformance NAME`: run golden episodes through an installed trainer and check it."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

from gem_conformance.kit import Result, report
from gem_conformance.kit import run as run_kit
from gem_core.adapter_kit.declaration import adapters, probe
from gem_core.cli.terminal import say
from gem_core.errors import ConfigError

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = "check that an installed trainer gives every token the expected advantage"
EXAMPLES = (
    "gem-rl conformance trl",
    "gem-rl conformance trl --no-ranks --out conformance.md",
    "gem-rl conformance trl --no-ranks --device cuda --bfloat16",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the adapter name, the checks to run and the output file."""
    parser.add_argument("name", metavar="ADAPTER", help="an adapter listed by `gem-rl adapters`")
    parser.add_argument(
        "--no-ranks", action="store_true", help="skip the checks that start several processes"
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="where the loss runs (default cpu)"
    )
    parser.add_argument(
        "--bfloat16", action="store_true", help="compute in bfloat16, not in float32"
    )
    parser.add_argument("--out", type=Path, help="also write the table to this file")


def run(args: argparse.Namespace) -> int:
    """Print each result, then the table; return 1 if a check failed."""
    adapter = adapters.get(args.name)
    status = probe(adapter)
    missing = list(status.missing)
    if not status.supported or adapter.status != "ready":
        raise _not_checked(adapter.name, missing or ["it is not implemented yet"])
    try:  # if only optional parts are missing, the import succeeds
        harness = importlib.import_module(f"{adapter.package}.conformance").harness()
    except ImportError as error:
        raise _not_checked(adapter.name, [*missing, str(error)]) from error
    if harness.only_cpu and (args.device != "cpu" or args.bfloat16):
        raise ConfigError(
            f"the harness of {adapter.name!r} runs on the CPU in float32; "
            "omit --device and --bfloat16"
        )
    if not args.no_ranks and (args.device != "cpu" or args.bfloat16):
        raise ConfigError(
            "the checks with several processes run on the CPU in float32; add --no-ranks"
        )
    if args.device == "cuda" and not _has_cuda():
        raise ConfigError("--device cuda was given, but torch finds no GPU")
    harness.device, harness.bfloat16 = args.device, args.bfloat16
    results = run_kit(harness, ranks=not args.no_ranks, progress=_print_result)
    table = report(harness, results)
    say(f"\n{table}")
    if args.out is not None:
        args.out.write_text(table + "\n", encoding="utf-8")
    failed = sum(r.outcome == "FAILED" for r in results)
    say(f"\n{len(results) - failed} of {len(results)} checks pass or are rejected as declared.")
    return int(failed > 0)


def _not_checked(name: str, reasons: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"the adapter {name!r} cannot be checked here: {'; '.join(reasons)}. "
        f"`gem-rl adapters {name}` shows how to install it"
    )


def _has_cuda() -> bool:
    import torch

    available: bool = torch.cuda.is_available()
    return available


def _print_result(result: Result) -> None:
    say(f"{result.outcome:8} {result.case}")
