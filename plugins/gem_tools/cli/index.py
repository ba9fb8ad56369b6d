"""`gem-rl index`: build an index for the search tool."""

from __future__ import annotations

import argparse

from gem_core.cli.terminal import say
from gem_core.errors import ConfigError

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = "build an index of texts for the search tool"
EXAMPLES = ("gem-rl index corpus.jsonl index", "gem-rl index notes/ index --words 200")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the corpus, the output folder and the passage size."""
    parser.add_argument(
        "corpus",
        help="a JSONL file with one text (and optionally id and title) per line, "
        "or a folder of text files",
    )
    parser.add_argument("out", help="the folder of the new index; replaces an existing index")
    parser.add_argument(
        "--words",
        type=int,
        default=150,
        metavar="N",
        help="words per passage when text files are split (default 150)",
    )
    parser.add_argument(
        "--embed",
        default="",
        metavar="MODULE:FUNCTION",
        help="build a dense index with this function from a list of texts to their vectors",
    )


def run(args: argparse.Namespace) -> int:
    """Build the index and print how to use it."""
    from gem_tools.search import Index

    if args.words < 1:
        raise ConfigError(f"--words must be 1 or more; got {args.words}")
    if args.embed:
        from gem_tools.dense import DenseIndex

        dense = DenseIndex.build(args.corpus, args.out, args.embed, words=args.words)
        use = f"search(index='{args.out}', embed='{args.embed}')"
        say(f"{dense.size} passages in {args.out}. Use it as a wrapper: {use}")
        return 0
    index = Index.build(args.corpus, args.out, words=args.words)
    say(f"{index.size} passages in {args.out}. Use it as a wrapper: search(index='{args.out}')")
    return 0
