"""Title of a record: the model and the name of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gem_core.errors import RecordError
from gem_core.records.file import read_header

__all__ = ["title_of"]

_USUAL = ("episodes", "random", "expert")
"""Names of records that say nothing about the run; its folder does."""


def title_of(path: str | Path) -> str:
    """Return `model · run`, or only the run if the record does not name the model.

    The run is the folder of the record. The record may not exist yet.
    """
    path = Path(path)
    name = path.name.removesuffix(".gz").removesuffix(".jsonl")
    run = path.resolve().parent.name if name in _USUAL else name
    model = _model(path)
    return f"{model} · {run}" if model and run else model or run or str(path)


def _model(path: Path) -> str:
    try:
        meta: Any = read_header(path)["meta"]
    except (OSError, RecordError):
        return ""
    plan = meta.get("plan") if isinstance(meta, dict) else None
    named = plan.get("player") if isinstance(plan, dict) else meta.get("model")
    return named if isinstance(named, str) else ""
