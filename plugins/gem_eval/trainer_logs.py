"""Trainer logs: the metrics of a run by update, from any file that a trainer writes.

| file                    | written by                                                         |
|-------------------------|--------------------------------------------------------------------|
| `metrics.jsonl`         | `MetricsFile`: the recipes, and adapters with `GemConfig(metrics)` |
| `trainer_state.json`    | TRL and other trainers of transformers, in every checkpoint        |
| `events.out.tfevents.*` | any trainer that logs to tensorboard                               |

Each update is a mapping with `step`, the trainer's metrics, and as far as the file has them
`episodes`, `tokens` and `seconds` since the update before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gem_core.errors import ConfigError, MissingDependencyError, RecordError
from gem_core.training.metrics_file import NAME, read_metrics

__all__ = ["log_file", "metric_name", "read_log"]

_STATE = "trainer_state.json"
_EVENTS = "events.out.tfevents."


def read_log(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read the updates of a run from a log file or from the folder of the run."""
    file = log_file(path)
    if file.name == _STATE:
        return _trainer_state(file)
    if _EVENTS in file.name:
        return _tensorboard(file)
    return _merged(_last_run(read_metrics(file)))


def log_file(path: str | os.PathLike[str]) -> Path:
    """Return the log of a run: `path` itself if it is a file, else the first kind in its folder.

    Of several checkpoints it is the last one's, of several event files the newest.
    """
    path = Path(path)
    if not path.is_dir():
        return path
    if (path / NAME).exists():
        return path / NAME
    states: list[Path] = [*path.glob(f"checkpoint-*/{_STATE}"), *path.glob(_STATE)]
    if states:
        return max(states, key=_last_step)
    events = sorted(path.rglob(f"{_EVENTS}*"), key=lambda file: file.stat().st_mtime)
    if events:
        return events[-1]
    raise ConfigError(
        f"{path} has no log of a run: expected {NAME}, {_STATE} (also in checkpoint-*) or "
        f"tensorboard's {_EVENTS}*. Set GemConfig(metrics=...), or save a checkpoint"
    )


def metric_name(names: Iterable[str], metric: str) -> str | None:
    """Find a metric: as it is, with the prefix `gem/`, or as the only name that ends in it."""
    known = set(names)
    for name in (metric, f"gem/{metric}", f"train/gem/{metric}"):
        if name in known:
            return name
    endings = [name for name in known if name.endswith(f"/{metric}")]
    return endings[0] if len(endings) == 1 else None


def _trainer_state(file: Path) -> list[dict[str, Any]]:
    history = _json(file).get("log_history")
    if not isinstance(history, list) or not all(isinstance(line, dict) for line in history):
        raise RecordError(f"{file} has no list of logged steps under 'log_history'")
    return _with_costs(_merged(history))


def _tensorboard(file: Path) -> list[dict[str, Any]]:
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise MissingDependencyError(
            "reading tensorboard's event files", "tensorboard", str(error)
        ) from error
    events = EventAccumulator(str(file), size_guidance={"scalars": 0}).Reload()
    lines: list[dict[str, Any]] = []
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            lines.append({"step": event.step, tag: event.value, "wall_time": event.wall_time})
    return _with_costs(_merged(lines))


def _last_run(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines of the last run: a step below those before it starts or resumes a run."""
    kept: list[dict[str, Any]] = []
    for line in lines:
        if kept and line["step"] < kept[-1]["step"]:
            kept = [before for before in kept if before["step"] < line["step"]]
        kept.append(line)
    return kept


def _merged(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one line per step, in order; the last value of a metric counts."""
    by_step: dict[int, dict[str, Any]] = {}
    for line in lines:
        step = line.get("step")
        if isinstance(step, int):
            by_step.setdefault(step, {}).update(line)
    return [by_step[step] for step in sorted(by_step)]


def _with_costs(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the `tokens` and `seconds` since the update before, from what trainers log.

    TRL logs all tokens so far, and the mean seconds of the steps since its last line; other lines,
    as of an evaluation, have neither. Tensorboard has the time of each line.
    """
    tokens, step, time = 0.0, 0, None
    for line in lines:
        total = line.get(metric_name(line, "num_tokens") or "")
        if isinstance(total, (int, float)):
            line["tokens"], tokens = total - tokens, total
        step_time = line.get(metric_name(line, "step_time") or "")
        if isinstance(step_time, (int, float)):
            line["seconds"], step = step_time * (line["step"] - step), line["step"]
        elif "wall_time" in line:
            line["seconds"] = 0.0 if time is None else line["wall_time"] - time
        time = line.get("wall_time")
    return lines


def _last_step(file: Path) -> int:
    step = _json(file).get("global_step")
    return step if isinstance(step, int) else -1


def _json(file: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{file} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise RecordError(f"{file} is not a JSON object")
    return content
