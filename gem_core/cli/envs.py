"""`gem-rl envs`: the environments there are, with what is known of each without importing it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from gem_core.cli.terminal import say, table, width
from gem_core.env.registry import EnvSpec, environments, list_envs
from gem_core.errors import UnknownNameError

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "list the environments"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A pattern, and whether a program or a page is to have them."""
    parser.add_argument(
        "pattern", nargs="?", default="*", help="part of an id, or a pattern with * and ?"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    form.add_argument("--markdown", action="store_true", help="print the page docs/environments.md")


def run(args: argparse.Namespace) -> int:
    """Prints the table, the list, or the page."""
    known = environments.all()
    specs = [known[id] for id in list_envs(args.pattern)]
    if not specs and args.pattern != "*":
        raise UnknownNameError(
            "environment", args.pattern, tuple(known), "`gem-rl envs` lists them all."
        )
    if args.json:
        facts = ("id", "turns", "reward", "data", "extra", "deterministic", "offline", "summary")
        say(json.dumps([{fact: getattr(spec, fact) for fact in facts} for spec in specs], indent=2))
        return 0
    if args.markdown:
        say(_page(specs), end="")
        return 0
    rows = [(s.id, _turns(s), s.reward, s.data, s.extra or "-", s.summary) for s in specs]
    say(table(("ID", "TURNS", "REWARD", "DATA", "EXTRA", "SUMMARY"), rows, width()))
    return 0


def _turns(spec: EnvSpec) -> str:
    return "-" if spec.turns is None else str(spec.turns)


def _page(specs: Sequence[EnvSpec]) -> str:
    """A table for each namespace; ids of which everything else is equal share a row."""
    offline = [spec for spec in specs if spec.offline]
    lines = [
        "# Environments",
        "",
        "<!-- Made by `gem-rl envs --markdown`, and compared with it by a test. -->",
        "",
        f"{len(specs)} ids, {len(offline)} of which run without a network once their extra is installed, in a checkout by",
        "`pip install '.[EXTRA]'`; the others fetch a data set or ask a server. Turns is the environment's own limit.",
        "`gem-rl envs PATTERN` says the same, a line for each id.",
    ]
    namespaces = sorted({spec.id.partition(":")[0] for spec in specs})
    for namespace in namespaces:
        members = [spec for spec in specs if spec.id.startswith(f"{namespace}:")]
        rows: dict[tuple[str, ...], list[str]] = {}
        for s in members:
            facts = (
                s.summary,
                _turns(s),
                s.reward,
                s.data,
                s.extra or "-",
                "yes" if s.offline else "no",
            )
            rows.setdefault(facts, []).append(f"`{s.id}`")
        lines += [
            "",
            f"## {namespace}: {len(members)}",
            "",
            "| Id | | Turns | Reward | Data | Extra | Offline |",
            "|" + "---|" * 7,
        ]
        lines += [f"| {' '.join(ids)} | {' | '.join(facts)} |" for facts, ids in rows.items()]
    return "\n".join(lines) + "\n"
