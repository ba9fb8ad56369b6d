"""`gem-rl plot`: draw learning curves from the logs of training runs, with a band over seeds."""

from __future__ import annotations

import argparse
import glob
import sys
from pathlib import Path

from gem_core.cli.terminal import say
from gem_core.errors import ConfigError

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = "draw learning curves of training runs"
EXAMPLES = ("gem-rl plot out", "gem-rl plot 'ReBN=runs/rebn-*' 'GRPO=runs/grpo-*' --out curve.png")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gem-rl plot`."""
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="[NAME=]RUN",
        help="metrics.jsonl, TRL's trainer_state.json, a tensorboard event file, or a folder with "
        "one of them, also as a pattern with * and ?; runs with the same NAME are seeds of one "
        "curve",
    )
    parser.add_argument("--metric", default="success", help="metric to draw (default success)")
    parser.add_argument(
        "--out",
        action="append",
        type=Path,
        metavar="FILE",
        help=".png, .svg or .pdf; repeat for several (default curve.png and curve.svg)",
    )
    parser.add_argument(
        "--smooth", type=int, default=1, metavar="N", help="mean of the last N updates (default 1)"
    )
    parser.add_argument(
        "--band",
        choices=("std", "range"),
        default="std",
        help="std: one standard deviation, range: minimum to maximum (default std)",
    )
    parser.add_argument(
        "--x",
        choices=("updates", "episodes", "tokens", "seconds"),
        default="updates",
        help="x axis; sums over the updates so far, if the log has them (default updates)",
    )
    parser.add_argument("--title", default="")


def run(args: argparse.Namespace) -> int:
    """Draw the curves and print the first and last value of each."""
    from gem_eval.curves import draw_curves

    curves = _curves(args.runs)
    outs = args.out or [Path("curve.png"), Path("curve.svg")]
    for out in outs:
        drawn = draw_curves(
            curves,
            out,
            metric=args.metric,
            title=args.title,
            smooth=args.smooth,
            band=args.band,
            x=args.x,
        )
    for name, curve in drawn.items():
        runs = f"{curve.runs} runs" if curve.runs > 1 else "1 run"
        spread = f" (from {curve.low[-1]:.3f} to {curve.high[-1]:.3f})" if curve.runs > 1 else ""
        first = f"{curve.mean[0]:.3f} at update {curve.steps[0]}"
        last = f"{curve.mean[-1]:.3f} at update {curve.steps[-1]}{spread}"
        say(f"{name}: {runs}, {args.metric} {first}, {last}")
        if curve.shortest < curve.longest:
            print(
                f"{name}: the runs have between {curve.shortest} and {curve.longest} updates",
                file=sys.stderr,
            )
    say(f"written: {', '.join(map(str, outs))}")
    return 0


def _curves(arguments: list[str]) -> dict[str, list[str]]:
    curves: dict[str, list[str]] = {}
    for argument in arguments:
        name, separator, pattern = argument.partition("=")
        if not separator or Path(argument).exists():
            path, pattern = Path(argument), argument
            name = path.name if path.is_dir() or path.suffix == ".jsonl" else path.parent.name
            name = path.parent.name if path.name == "metrics.jsonl" else name
            name = argument if name in curves else name
        runs = (
            sorted(glob.glob(pattern))
            if any(c in pattern for c in "*?[") and not Path(pattern).exists()
            else [pattern]
        )
        if not runs:
            raise ConfigError(f"no file or folder matches {pattern!r}")
        curves.setdefault(name, []).extend(runs)
    return curves
