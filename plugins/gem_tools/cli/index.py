"""`gem-rl index`: builds the index that the search tool looks things up in."""

from __future__ import annotations

import argparse

from gem_core.cli.terminal import say
from gem_core.errors import ConfigError

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "build an index of texts for the search tool"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """From what, to where."""
    parser.add_argument(
        "corpus",
        help="a JSONL file with a text (and an id and a title) on each line, or a folder of text files",
    )
    parser.add_argument("out", help="the folder to write the index to; an index there is replaced")
    parser.add_argument(
        "--words",
        type=int,
        default=150,
        metavar="N",
        help="words of a passage, where files are cut (default 150)",
    )


def run(args: argparse.Namespace) -> int:
    """Builds it and says how to use it."""
    from gem_tools.search import Index

    if args.words < 1:
        raise ConfigError(f"--words must be 1 or more; given: {args.words}")
    index = Index.build(args.corpus, args.out, words=args.words)
    say(f"{index.size} passages in {args.out}. Use it as a wrapper: search(index='{args.out}')")
    return 0
