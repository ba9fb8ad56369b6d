"""`gem-rl compare`: the difference of two evaluations, paired by seed, with intervals."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gem_core.cli.terminal import say, table, width
from gem_core.errors import ConfigError

if TYPE_CHECKING:
    from gem_eval.evaluation import Difference

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = "compare two evaluations, seed by seed"
EXAMPLES = ("gem-rl compare runs/eval/before runs/eval/after",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gem-rl compare`."""
    parser.add_argument(
        "first", type=Path, help="output folder of `gem-rl eval`, or an episode record"
    )
    parser.add_argument("second", type=Path, help="the evaluation to compare with the first")
    parser.add_argument("--metric", help="return, success or turns (default: return and success)")
    parser.add_argument(
        "--fail-if-worse",
        action="store_true",
        help="exit with code 1 if the second is significantly worse, or cannot be compared",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")


def run(args: argparse.Namespace) -> int:
    """Print one table row per environment and metric."""
    from gem_eval.evaluation import compare, results

    if args.fail_if_worse and args.metric == "turns":
        raise ConfigError(
            "--fail-if-worse does not support --metric turns: more turns are not worse in every "
            "environment; use --metric return or --metric success"
        )
    first, second = (results(_record(path)) for path in (args.first, args.second))
    metrics = [args.metric] if args.metric else ["return", "success"]
    differences = [d for metric in metrics for d in compare(first, second, metric)]
    if not differences:
        shared = (
            [d.env_id for d in compare(first, second, "turns")] if metrics == ["success"] else []
        )
        if shared:
            raise ConfigError(
                f"neither {args.first} nor {args.second} reports success on {', '.join(shared)}; "
                "use --metric return or --metric turns"
            )
        raise ConfigError(
            f"{args.first} and {args.second} have no seed in common: expected finished episodes "
            "of the same environment with the same seed and options on both sides"
        )
    for d in differences:
        for path, side in ((args.first, first), (args.second, second)):
            if d.metric == "success" and all(
                e.success is None for e in side if e.env_id == d.env_id
            ):
                print(
                    f"note: {path} does not report success on {d.env_id}; "
                    "all its episodes count as unsuccessful",
                    file=sys.stderr,
                )
    differences.sort(key=lambda d: [e.env_id for e in first].index(d.env_id))
    if args.json:
        say(json.dumps([d.as_json() for d in differences], indent=2))
    else:
        headers = (
            "ENVIRONMENT",
            "METRIC",
            "SEEDS",
            "FIRST",
            "SECOND",
            "DIFFERENCE [95%]",
            "SECOND IS",
            "UNPAIRED",
        )
        say(table(headers, [_row(d) for d in differences], width()))
    known = {d.env_id for d in compare(first, second, "turns")}
    missing = [env for env in dict.fromkeys(e.env_id for e in first) if env not in known]
    for env_id in missing:
        print(
            f"note: {env_id} was not compared: no seed is finished on both sides", file=sys.stderr
        )
    worse = any(d.verdict == "worse" for d in differences)
    return int(args.fail_if_worse and bool(worse or missing))


def _record(path: Path) -> Path:
    return path / "episodes.jsonl" if path.is_dir() else path


def _row(d: Difference) -> tuple[str, ...]:
    change = d.difference
    interval = (
        ""
        if change.low is None or change.high is None
        else f" [{change.low:+.3f}, {change.high:+.3f}]"
    )
    verdict = {"better": "higher", "worse": "lower"}.get(d.verdict, d.verdict)
    return (
        d.env_id,
        d.metric,
        str(change.seeds),
        f"{d.first:.3f}",
        f"{d.second:.3f}",
        f"{change.value:+.3f}{interval}",
        verdict,
        str(d.unpaired),
    )
