"""`gem-rl view`: show recorded episodes in a browser, as one page or from a local server."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gem_core.cli.terminal import say
from gem_core.errors import ConfigError, RecordError
from gem_core.types import Episode
from gem_eval.cli.output import check_file

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = "show episodes in a browser"
EXAMPLES = ("gem-rl view out/episodes.jsonl",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gem-rl view`."""
    parser.add_argument(
        "file", type=Path, help="an episode record, or a folder with an episodes.jsonl"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="path of the page (default: next to the record, as .html)",
    )
    parser.add_argument(
        "--follow",
        action="store_true",
        help="serve the page on 127.0.0.1 and show episodes as they are recorded",
    )
    parser.add_argument(
        "--port", type=int, metavar="N", help="port of --follow (default: a free port)"
    )
    parser.add_argument(
        "--advantage",
        default="rebn",
        metavar="NAME",
        help="estimator for episodes without recorded advantages (default rebn)",
    )
    parser.add_argument("--gamma", type=float, default=1.0, help="discount per turn (default 1)")
    parser.add_argument(
        "--tokenizer",
        default="",
        metavar="NAME",
        help="tiny, smollm2, a model folder or a hub name; shows tokens as text instead of ids",
    )


def run(args: argparse.Namespace) -> int:
    """Write the page, or serve it until Ctrl-C."""
    from gem_core.records.file import read_episodes
    from gem_eval.viewer import Credit, ViewerServer, page_of, title_of

    path = args.file / "episodes.jsonl" if args.file.is_dir() else args.file
    credit = Credit(args.advantage, args.gamma)
    tokenizer: Any = None
    if args.tokenizer:
        from gem_eval.models.catalog import tokenizer_named

        tokenizer = tokenizer_named(args.tokenizer)
    if args.follow:
        if args.out:
            raise ConfigError("--follow does not write a page; remove --out or --follow")
        server = ViewerServer(path, port=args.port or 0, credit=credit, tokenizer=tokenizer)
        say(f"{server.url} follows {path}; press Ctrl-C to stop")
        try:
            server.serve()
        except KeyboardInterrupt:
            print(file=sys.stderr)
        return 0
    if args.port is not None:
        raise ConfigError("--port is the port of --follow; add --follow or remove --port")
    out = args.out or path.with_name(f"{path.name.removesuffix('.gz').removesuffix('.jsonl')}.html")
    check_file(out, path)
    count = 0

    def counted() -> Iterator[Episode]:
        nonlocal count
        for episode in read_episodes(path):
            count += 1
            yield episode

    page = page_of(counted(), title_of(path), credit, tokenizer)
    try:
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise RecordError(f"cannot write {out}: {error}") from error
    shown = f"{count:,} episode{'s' * (count != 1)}, {len(page) / 1e3:,.0f} kB"
    say(f"{out}: {shown}, self-contained; open it in a browser")
    return 0
