"""Reading of result files, and the Markdown tables of pages, for the reports."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from gem_core.errors import ConfigError

__all__ = ["Result", "last", "markdown", "read", "results_under", "with_tables"]

Result = dict[str, Any]


def read(results: Path) -> dict[str, Result]:
    """Read all results, by the name of their run."""
    known = {}
    for path in sorted(results.glob("*/*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        known[result["run"]["name"]] = result
    return known


def results_under(known: dict[str, Result], prefix: str) -> dict[str, Result]:
    """Return the results whose names begin with a prefix, by the rest of their names."""
    return {
        name.removeprefix(prefix): result
        for name, result in known.items()
        if name.startswith(prefix)
    }


def last(result: Result, metric: str, count: int = 10) -> float:
    """Return the mean of a metric over the last updates of a training."""
    return fmean(result["curve"][metric][-count:])


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def with_tables(
    text: str, tables: Mapping[str, Callable[[dict[str, Result]], str]], known: dict[str, Result]
) -> str:
    """Return the text of a page with new tables between `<!-- table NAME -->` and `<!-- end -->`.

    The rest of the page stays as it is.
    """

    def table(marker: re.Match[str]) -> str:
        name = marker[1]
        if name not in tables:
            raise ConfigError(f"unknown table {name!r}; expected one of: {', '.join(tables)}")
        return f"<!-- table {name} -->\n{tables[name](known)}\n<!-- end -->"

    return re.sub(r"<!-- table (\S+) -->\n.*?<!-- end -->", table, text, flags=re.DOTALL)
