"""Metrics file: the metrics of a training run as JSON lines, one per update.

    metrics = MetricsFile("runs/mine/metrics.jsonl")
    metrics.write(step=0, success=0.25, loss=0.7)

Each line is one write, so a killed process leaves at most one incomplete last line, which readers
skip and the next writer removes. Each line is also sent as the event `update_end` to plugins such
as `gem_eval.tracker`.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gem_core.errors import ConfigError, RecordError
from gem_core.plugins.events import send_event

__all__ = ["NAME", "MetricsFile", "finite", "metrics_path", "read_metrics"]

NAME = "metrics.jsonl"
"""The name of the file in a run's folder."""


class MetricsFile:
    """Writes the metrics file of a training run. Only one process may write it."""

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """`path`: a .jsonl file or a folder. Appends to an existing file unless `overwrite`."""
        self.path = metrics_path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        size = 0
        if not overwrite and self.path.exists():
            content, begin = self.path.read_bytes(), b'{"step": '
            if not content.startswith(begin[: len(content)]):
                raise RecordError(f"{self.path} is not a metrics file; choose another path")
            size = content.rfind(b"\n") + 1
        with self.path.open("ab") as file:
            file.truncate(size)
        if not size:  # no file before the first update
            self.path.unlink()

    def resume(self, step: int) -> None:
        """Remove the last lines of this and later updates, which a resumed run makes again."""
        if self.path.exists():
            lines = self.path.read_bytes().splitlines(keepends=True)
            while lines and _step_of(lines[-1]) >= step:
                lines.pop()
            os.truncate(self.path, sum(map(len, lines)))

    def write(self, step: int, **numbers: float | None) -> None:
        """Append the metrics of one update; NaN and infinity are written as null."""
        plain = finite(numbers)
        with self.path.open("ab") as file:
            file.write((json.dumps({"step": step, **plain}) + "\n").encode())
        send_event("update_end", step=step, metrics=plain)


def finite(numbers: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return metrics with None in place of NaN and infinity."""
    for name, value in numbers.items():
        if value is not None and not isinstance(value, (int, float)):
            raise ConfigError(
                f"the metric {name!r} must be a number or None, "
                f"got {type(value).__name__} {value!r:.60}"
            )
    return {
        name: value if value is None or math.isfinite(value) else None
        for name, value in numbers.items()
    }


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read the lines of a metrics file or folder; skip an incomplete last line."""
    path = metrics_path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RecordError(f"the metrics {path} cannot be read: {error}") from error
    lines = []
    for number, text in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), 1):
        try:
            line = json.loads(text)
        except ValueError as error:
            raise RecordError(f"{path}, line {number}, is not JSON: {error}") from None
        if not isinstance(line, dict) or not isinstance(line.get("step"), int):
            raise RecordError(
                f"{path}, line {number}, is not an object with a whole number under 'step'"
            )
        lines.append(line)
    return lines


def _step_of(line: bytes) -> int:
    """Return the update of a line; -1 if it has none."""
    step = re.match(rb'\{"step": (\d+)', line)
    return int(step[1]) if step else -1


def metrics_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a metrics file: `path` itself if it ends in .jsonl, else a file in it."""
    path = Path(path)
    return path if path.suffix == ".jsonl" else path / NAME
