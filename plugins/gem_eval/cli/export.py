"""`gem-rl export`: write recorded or expert episodes as an SFT or DPO dataset."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from gem_core.cli.arguments import env_arguments
from gem_core.cli.terminal import say
from gem_core.errors import ConfigError, RecordError
from gem_core.types import Episode
from gem_eval.cli.output import check_file

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = "write episodes as an SFT or DPO dataset"
EXAMPLES = (
    "gem-rl export sft terminal:Any-v0-easy --episodes 200 --out sft.jsonl",
    "gem-rl export dpo runs/eval/model --out dpo.jsonl",
)
_ONLY = {"per": "sft", "min_return": "sft", "margin": "dpo"}
"""The kind of dataset that a setting belongs to."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gem-rl export`."""
    parser.add_argument("kind", choices=("sft", "dpo"), help="the kind of dataset")
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="a record, a folder with an episodes.jsonl, or an environment id: its expert plays",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="path of the JSONL")
    parser.add_argument(
        "--episodes", type=int, metavar="N", help="seeds to play per id (default 100)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="the first seed to play (default 0)")
    parser.add_argument(
        "--args", default="", metavar="JSON", help="arguments of the environment as a JSON object"
    )
    parser.add_argument(
        "--per",
        choices=("turn", "episode"),
        help="sft: a prompt and completion per turn, or the messages of an episode (default turn)",
    )
    parser.add_argument(
        "--min-return",
        type=float,
        metavar="X",
        help="sft: the least return of an episode (default: its success)",
    )
    parser.add_argument(
        "--margin",
        type=float,
        metavar="X",
        help="dpo: the returns of a pair must differ by more than this (default 0)",
    )


def run(args: argparse.Namespace) -> int:
    """Write the dataset."""
    from gem_eval.export import dpo_rows, sft_rows

    _check(args)
    check_file(args.out, *(_record(source) for source in args.sources))
    episodes = chain.from_iterable(_episodes(source, args) for source in args.sources)
    if args.kind == "sft":
        rows = sft_rows(episodes, min_return=args.min_return, per=args.per or "turn")
    else:
        rows = dpo_rows(episodes, margin=args.margin or 0.0)
    count = 0
    try:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        # Write elsewhere first: an interrupted export leaves no partial dataset.
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=args.out.parent, prefix=f".{args.out.name}-", delete=False
        ) as file:
            try:
                for row in rows:
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
                    count += 1
                if not count:
                    raise ConfigError(_why_empty(args))
                file.close()
                os.chmod(file.name, 0o644)
                os.replace(file.name, args.out)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise RecordError(f"cannot write {args.out}: {error}") from error
    say(f"{args.out}: {count:,} row{'s' * (count != 1)}")
    return 0


def _check(args: argparse.Namespace) -> None:
    """Raise `ConfigError` for a wrong setting, or one without effect."""
    for name, kind in _ONLY.items():
        if getattr(args, name) is not None and args.kind != kind:
            raise ConfigError(
                f"--{name.replace('_', '-')} is a setting of {kind} datasets; remove it"
            )
    if all(Path(source).exists() for source in args.sources):
        for name in ("args", "episodes", "seed"):
            if getattr(args, name) not in (None, ""):
                raise ConfigError(
                    f"--{name} needs an environment id, whose expert plays; "
                    "a record is exported as it is"
                )
    args.episodes = 100 if args.episodes is None else args.episodes
    args.seed = 0 if args.seed is None else args.seed
    if args.episodes < 1 or args.seed < 0:
        raise ConfigError("--episodes must be at least 1 and --seed at least 0")


def _record(source: str) -> Path:
    path = Path(source)
    return path / "episodes.jsonl" if path.is_dir() else path


def _episodes(source: str, args: argparse.Namespace) -> Iterator[Episode]:
    from gem_core.records.file import read_episodes

    if Path(source).exists():
        yield from read_episodes(_record(source))
    elif ":" in source:
        yield from _played(source, args)
    else:
        raise ConfigError(
            f"{source} is neither a file nor an environment id such as game:Sudoku-v0"
        )


def _played(env_id: str, args: argparse.Namespace) -> Iterator[Episode]:
    """Play the expert, and for pairs the random player on the same seeds."""
    from gem_core.policies.players import player_named
    from gem_core.rollout.engine import Rollout, tasks_for

    seeds = range(args.seed, args.seed + args.episodes)
    tasks = tasks_for(env_id, seeds, env_kwargs=env_arguments(args.args))
    for player in ("expert", "random") if args.kind == "dpo" else ("expert",):
        with Rollout(player_named(player)) as rollout:
            episodes = rollout.run_batch(tasks)
        failed = [episode for episode in episodes if episode.failed]
        if len(failed) == len(episodes):
            raise ConfigError(f"the {player} player cannot play {env_id}: {failed[0]!r}")
        yield from episodes


def _why_empty(args: argparse.Namespace) -> str:
    if args.kind == "dpo":
        return (
            "no two episodes of the same task and seed have different returns and a common prompt; "
            "record several episodes per seed (gem-rl eval --samples N), or lower --margin"
        )
    least = "is a success" if args.min_return is None else f"has a return of {args.min_return:g}"
    return f"no episode {least}; lower --min-return"
