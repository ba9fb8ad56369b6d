"""Reproduce cells of docs/baselines.md: run them again and compare with the recorded results.

`python benchmarks/algorithms.py reproduce NAME` calls it. Recorded results stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

__all__ = ["compared"]


def compared(names: Sequence[str], recorded: Path, repeated: Path) -> str:
    """Return a table of runs with recorded and new returns, and what else differs."""
    lines = [f"{'run':44} {'recorded':>18} {'repeated':>18}  return, success"]
    old, new = _results(names, recorded), _results(names, repeated)
    for name, result in new.items():
        lines.append(f"{name:44} {_score([old.get(name)]):>18} {_score([result]):>18}")
    if len(new) > 1:
        both = [name for name in new if name in old]
        lines.append(
            f"{'mean of ' + str(len(new)):44} {_score([old[name] for name in both]):>18} "
            f"{_score(list(new.values())):>18}"
        )
        spread = [stdev(r["evaluation"]["return"] for r in new.values())]
        lines.append(f"standard deviation of the repeated returns: {spread[0]:.3f}")
    for fact, meaning, consequence in (
        ("model", "weights before training", "the runs start from another model"),
        ("device", "device", "with the same weights, expect the same numbers up to noise"),
    ):
        then, now = (sorted({str(r[fact]) for r in results.values()}) for results in (old, new))
        same = "the same" if then == now else f"different: {consequence}"
        lines.append(f"{meaning}: recorded {', '.join(then) or '-'}, now {', '.join(now)} ({same})")
    return "\n".join(lines)


def _results(names: Sequence[str], folder: Path) -> dict[str, Any]:
    files = {name: folder / f"{name}.json" for name in names}
    return {
        name: json.loads(file.read_text(encoding="utf-8"))
        for name, file in files.items()
        if file.is_file()
    }


def _score(results: Sequence[Any]) -> str:
    known = [result["evaluation"] for result in results if result is not None]
    if not known:
        return "-"
    return f"{fmean(e['return'] for e in known):.3f}, {fmean(e['success'] for e in known):.1%}"
