"""Metrics file: the numbers of a training run, one JSON object per update.

    metrics = MetricsFile("runs/mine/metrics.jsonl")
    metrics.write(step=0, success=0.25, loss=0.7)

A line is one write and the file only grows: a killed process leaves at most one incomplete last line, which readers skip and
the next writer removes. Each line is also the event `update_end`, for plugins such as `gem_eval.tracker`.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from gem_core.errors import ConfigError, RecordError
from gem_core.plugins.events import send_event

__all__ = ["NAME", "MetricsFile", "metrics_path", "read_metrics"]

NAME = "metrics.jsonl"
"""What the file is called in the folder of a run."""


class MetricsFile:
    """The numbers of a training run, a line per update. Standard library only; one process writes it."""

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """A file that ends in .jsonl, or the folder where it is `metrics.jsonl`. An earlier one is gone on from, but for
        `overwrite`."""
        self.path = metrics_path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept = 0
        if not overwrite and self.path.exists():
            kept = self.path.read_bytes().rfind(b"\n") + 1
        with self.path.open("ab") as file:
            file.truncate(kept)
        if not kept:  # until there is an update: a run that was broken off before its first one has left nothing
            self.path.unlink()

    def write(self, step: int, **numbers: float | None) -> None:
        """Appends one update; a number that is none (NaN, infinite) is written as null."""
        for name, value in numbers.items():
            if value is not None and not isinstance(value, (int, float)):
                raise ConfigError(
                    f"the metric {name!r} must be a number or None; given: {type(value).__name__} {value!r:.60}"
                )
        plain = {
            name: value if value is None or math.isfinite(value) else None
            for name, value in numbers.items()
        }
        with self.path.open("ab") as file:
            file.write((json.dumps({"step": step, **plain}) + "\n").encode())
        send_event("update_end", step=step, metrics=plain)


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of a metrics file, or of the one in a folder; a half-written tail is passed over."""
    path = metrics_path(path)
    try:
        whole = path.read_bytes()
    except OSError as error:
        raise RecordError(f"the metrics {path} cannot be read: {error}") from error
    lines = []
    for number, text in enumerate(whole[: whole.rfind(b"\n") + 1].splitlines(), 1):
        try:
            line = json.loads(text)
        except ValueError as error:
            raise RecordError(f"{path}, line {number}, is no JSON: {error}") from None
        if not isinstance(line, dict) or not isinstance(line.get("step"), int):
            raise RecordError(
                f"{path}, line {number}: a line of metrics is an object with a whole number under 'step'"
            )
        lines.append(line)
    return lines


def metrics_path(path: str | os.PathLike[str]) -> Path:
    """The metrics file at a path: the path itself, or the file in that folder."""
    path = Path(path)
    return path if path.suffix == ".jsonl" else path / NAME
