"""`gem-rl view`: episodes in a browser, as one page or from a server that follows a growing record."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from gem_core.cli.terminal import say
from gem_core.errors import ConfigError, RecordError

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "look at episodes in a browser"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which episodes, and how."""
    parser.add_argument(
        "file", type=Path, help="a record of episodes, or a folder with an episodes.jsonl"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="where the page is written (default: beside it, as .html)",
    )
    parser.add_argument(
        "--follow",
        action="store_true",
        help="serve on this machine instead, and show episodes as they come",
    )
    parser.add_argument(
        "--port", type=int, default=0, metavar="N", help="with --follow (default: a free one)"
    )
    parser.add_argument(
        "--advantage",
        default="rebn",
        metavar="NAME",
        help="estimator of the advantages (default rebn)",
    )
    parser.add_argument("--gamma", type=float, default=1.0, help="discount per turn (default 1)")
    parser.add_argument(
        "--tokenizer",
        default="",
        metavar="NAME",
        help="tiny, smollm2 or a folder: shows tokens as text, not ids",
    )


def run(args: argparse.Namespace) -> int:
    """Writes the page, or serves until Ctrl-C."""
    from gem_core.records.file import read_episodes
    from gem_eval.viewer import Credit, ViewerServer, page_of

    path = args.file / "episodes.jsonl" if args.file.is_dir() else args.file
    credit = Credit(args.advantage, args.gamma)
    tokenizer: Any = None
    if args.tokenizer:
        from gem_eval.models.catalog import tokenizer_named

        tokenizer = tokenizer_named(args.tokenizer)
    if args.follow:
        if args.out:
            raise ConfigError("--follow serves and writes no page; leave --out or --follow out")
        server = ViewerServer(path, port=args.port, credit=credit, tokenizer=tokenizer)
        say(f"{server.url} follows {path}; Ctrl-C ends it")
        try:
            server.serve()
        except KeyboardInterrupt:
            print(file=sys.stderr)
        return 0
    page = page_of(read_episodes(path), path.name, credit, tokenizer)
    out = args.out or path.with_name(f"{path.name.removesuffix('.gz').removesuffix('.jsonl')}.html")
    try:
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise RecordError(f"{out} cannot be written: {error}") from error
    say(f"{out}: {len(page) / 1e3:,.0f} kB, complete in itself; open it in a browser")
    return 0
