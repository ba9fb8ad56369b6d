"""`gem-rl plot`: learning curves from the metrics files of training runs, with bands over seeds."""

from __future__ import annotations

import argparse
import glob
import sys
from pathlib import Path

from gem_core.cli.terminal import say
from gem_core.errors import ConfigError

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "draw learning curves of training runs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which runs, which number of them, and where to."""
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="[NAME=]RUN",
        help="a folder with metrics.jsonl, or such a file; those under one NAME are seeds of one curve, and RUN may hold * and ?",
    )
    parser.add_argument("--metric", default="success", help="what is drawn (default success)")
    parser.add_argument(
        "--out", action="append", type=Path, metavar="FILE", help=".png or .svg; may be given twice"
    )
    parser.add_argument(
        "--smooth", type=int, default=1, metavar="N", help="mean of the last N updates (default 1)"
    )
    parser.add_argument(
        "--band",
        choices=("std", "range"),
        default="std",
        help="one standard deviation, or all seeds (default std)",
    )
    parser.add_argument("--title", default="")


def run(args: argparse.Namespace) -> int:
    """Draws, and says what."""
    from gem_eval.curves import draw_curves

    curves = _curves(args.runs)
    outs = args.out or [Path("curve.png"), Path("curve.svg")]
    for out in outs:
        drawn = draw_curves(
            curves, out, metric=args.metric, title=args.title, smooth=args.smooth, band=args.band
        )
    for name, curve in drawn.items():
        runs = f"{curve.runs} runs" if curve.runs > 1 else "1 run"
        spread = f" (from {curve.low[-1]:.3f} to {curve.high[-1]:.3f})" if curve.runs > 1 else ""
        say(
            f"{name}: {runs}, {args.metric} {curve.mean[0]:.3f} at update {curve.steps[0]}, ",
            end="",
        )
        say(f"{curve.mean[-1]:.3f} at update {curve.steps[-1]}{spread}")
        if curve.shortest < curve.longest:
            print(
                f"{name}: the shortest run has {curve.shortest} updates and the longest {curve.longest}",
                file=sys.stderr,
            )
    say(f"written: {', '.join(map(str, outs))}")
    return 0


def _curves(given: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in given:
        name, named, pattern = text.partition("=")
        if not named or Path(text).exists():
            name, pattern = (
                Path(text).name if Path(text).name != "metrics.jsonl" else Path(text).parent.name,
                text,
            )
            name = text if name in found else name
        runs = (
            sorted(glob.glob(pattern))
            if any(c in pattern for c in "*?[") and not Path(pattern).exists()
            else [pattern]
        )
        if not runs:
            raise ConfigError(f"nothing is there that matches {pattern!r}")
        found.setdefault(name, []).extend(runs)
    return found
