"""`gem-rl corpus`: write the texts that `search:MultiHop-v0` searches."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from gem_core.cli.terminal import say
from gem_core.errors import ConfigError

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = "write the texts of multi-hop search, for another search engine"
EXAMPLES = (
    "gem-rl corpus multi_hop.jsonl",
    "gem-rl corpus multi_hop.jsonl --format search-r1 --seed 1",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the file, its format and the seed of the corpus."""
    parser.add_argument("file", type=Path, help="the JSONL file to write, one text per line")
    parser.add_argument(
        "--format",
        choices=("gem", "search-r1"),
        default="gem",
        help="gem: id, title and text, for `gem-rl index`; search-r1: id and contents, for the "
        "retrieval server of Search-R1 (default gem)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="the corpus_seed of the environment"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")


def run(args: argparse.Namespace) -> int:
    """Write the corpus and print how many texts it has."""
    from gem_envs.worlds.deep_search.documents import documents
    from gem_envs.worlds.deep_search.encyclopedia import encyclopedia

    if args.seed < 0:
        raise ConfigError(f"--seed must be 0 or more; got {args.seed}")
    if args.file.exists() and not args.overwrite:
        raise ConfigError(f"{args.file} exists; choose another file, or pass --overwrite")
    texts = list(documents(encyclopedia(args.seed), args.seed))
    args.file.parent.mkdir(parents=True, exist_ok=True)
    with args.file.open("w", encoding="utf-8") as file:
        for text in texts:
            if args.format == "gem":
                row = {"id": text.id, "title": text.title, "text": text.text}
            else:
                row = {"id": text.id, "contents": f'"{text.title}"\n{text.text}'}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    say(f"{len(texts)} texts in {args.file}")
    return 0
