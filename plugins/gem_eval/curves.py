"""Learning curves, drawn from the logs of training runs.

draw_curves({"rebn": ["runs/rebn-0", "runs/rebn-1"]}, "curve.png")  # mean over runs, with a band
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal, get_args

from gem_core.errors import ConfigError, MissingDependencyError
from gem_eval.trainer_logs import log_file, metric_name, read_log

__all__ = ["X_AXES", "Curve", "XAxis", "curve_of", "draw_curves", "pyplot_module", "save_figure"]

XAxis = Literal["updates", "episodes", "tokens", "seconds"]
X_AXES = get_args(XAxis)

_X_LABELS = {
    "updates": "update",
    "episodes": "episodes",
    "tokens": "tokens",
    "seconds": "wall time in seconds",
}
_COLOURS = ("#08519c", "#d94801", "#238b45", "#6a51a3", "#636363", "#c51b8a", "#8c6d31", "#1b9e9e")


@dataclass(frozen=True, slots=True)
class Curve:
    """Mean and band of one metric over the updates that all runs share."""

    steps: tuple[int, ...]
    """The updates."""
    x: tuple[float, ...]
    """The position of each update on the x axis: the mean over the runs."""
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    runs: int
    shortest: int
    """Updates of the shortest run."""
    longest: int
    """Updates of the longest run."""


def curve_of(
    runs: Iterable[str | os.PathLike[str]],
    metric: str = "success",
    *,
    smooth: int = 1,
    band: Literal["std", "range"] = "std",
    x: XAxis = "updates",
) -> Curve:
    """Compute the curve of several runs, usually one per seed.

    `runs`: log files or folders with one (`gem_eval.trainer_logs`).
    `smooth`: average each point over the last `smooth` updates of its run.
    `band`: one standard deviation on either side of the mean, or minimum to maximum.
    `x`: the updates, or the episodes, tokens or seconds of all updates so far.
    """
    if smooth < 1:
        raise ConfigError(f"smooth must be 1 or more; got {smooth}")
    if band not in ("std", "range"):
        raise ConfigError(f"band must be 'std' or 'range'; got {band!r}")
    if x not in X_AXES:
        raise ConfigError(f"x must be one of {', '.join(X_AXES)}; got {x!r}")
    paths = list(runs)
    if not paths:
        raise ConfigError("a curve needs at least one run")
    series = [_smoothed(_metric_of(path, metric), smooth) for path in paths]
    steps = sorted(set.intersection(*(set(run) for run in series)))
    if not steps:
        raise ConfigError(f"the runs have no update with {metric!r} in common")
    columns = [[run[step] for run in series] for step in steps]
    mean = tuple(map(fmean, columns))
    if band == "range":
        low, high = tuple(map(min, columns)), tuple(map(max, columns))
    else:
        spread = [stdev(column) if len(column) > 1 else 0.0 for column in columns]
        low = tuple(m - s for m, s in zip(mean, spread))
        high = tuple(m + s for m, s in zip(mean, spread))
    positions: tuple[float, ...] = tuple(steps)
    if x != "updates":
        totals = [_running_total(path, x) for path in paths]
        positions = tuple(fmean(total[step] for total in totals) for step in steps)
    return Curve(
        tuple(steps),
        positions,
        mean,
        low,
        high,
        len(series),
        min(map(len, series)),
        max(map(len, series)),
    )


def draw_curves(
    curves: Mapping[str, Sequence[str | os.PathLike[str]]],
    out: str | os.PathLike[str],
    *,
    metric: str = "success",
    title: str = "",
    smooth: int = 1,
    band: Literal["std", "range"] = "std",
    levels: Mapping[str, float] | None = None,
    x: XAxis = "updates",
) -> dict[str, Curve]:
    """Draw one curve per name from its runs, and return the curves.

    The suffix of `out` selects PNG, SVG or PDF. `levels` are horizontal lines, such as the score
    before training. The other arguments are those of `curve_of`.
    """
    drawn = {
        name: curve_of(runs, metric, smooth=smooth, band=band, x=x) for name, runs in curves.items()
    }
    pyplot = pyplot_module()
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for i, (name, curve) in enumerate(drawn.items()):
        colour = _COLOURS[i % len(_COLOURS)]
        label = f"{name}, {curve.runs} runs" if curve.runs > 1 else name
        axes.plot(curve.x, curve.mean, color=colour, linewidth=2, label=label)
        if curve.runs > 1:
            axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
        elif smooth > 1:
            (path,) = curves[name]
            values = _metric_of(path, metric)
            axes.plot(
                curve.x,
                list(values.values()),
                color=colour,
                linewidth=1,
                alpha=0.35,
                label="each update",
            )
    for i, (name, level) in enumerate((levels or {}).items()):
        axes.axhline(
            level, color="#636363", linewidth=1, linestyle=("--", ":", "-.")[i % 3], label=name
        )
    share = all(0 <= y <= 1 for curve in drawn.values() for y in curve.mean)
    axes.set(
        title=title,
        xlabel=_X_LABELS[x],
        ylabel=metric + (f" (mean of {smooth} updates)" if smooth > 1 else ""),
    )
    if share:
        axes.set_ylim(0, 1.02)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(alpha=0.3)
    axes.legend(loc="best")
    save_figure(figure, out)
    return drawn


def save_figure(figure: Any, out: str | os.PathLike[str]) -> None:
    """Write a figure and close it.

    The same numbers give the same bytes: the file has no date, and an SVG has no random ids.
    """
    pyplot = pyplot_module()
    path = Path(out)
    date = {".svg": "Date", ".pdf": "CreationDate"}.get(path.suffix)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with pyplot.rc_context({"svg.hashsalt": "gem"}):
            figure.savefig(path, dpi=120, metadata={date: None} if date else None)
    except ValueError as error:
        raise ConfigError(f"cannot draw {path} ({error}); use .png, .svg or .pdf") from error
    finally:
        pyplot.close(figure)


def _metric_of(path: str | os.PathLike[str], metric: str) -> dict[int, float]:
    """Return a metric by step."""
    lines = read_log(path)
    known = sorted({name for line in lines for name in line} - {"step"})
    name = metric_name(known, metric)
    values = {
        line["step"]: float(line[name])
        for line in lines
        if name is not None and isinstance(line.get(name), (int, float))
    }
    if not values:
        raise ConfigError(
            f"{log_file(path)} has no numbers for {metric!r}; "
            f"its metrics: {', '.join(known) or 'none'}"
        )
    return values


def _running_total(path: str | os.PathLike[str], name: str) -> dict[int, float]:
    """Return the sum of a cost over the updates so far, by step.

    A line without the cost, as of an evaluation, adds nothing.
    """
    lines = read_log(path)
    costs = [line.get(name) for line in lines]
    if not any(isinstance(cost, (int, float)) for cost in costs):
        raise ConfigError(f"{log_file(path)} does not have the {name} of its updates")
    totals = accumulate(float(cost or 0.0) for cost in costs)
    return dict(zip([line["step"] for line in lines], totals))


def _smoothed(run: dict[int, float], width: int) -> dict[int, float]:
    values = list(run.values())
    return {step: fmean(values[max(0, i + 1 - width) : i + 1]) for i, step in enumerate(run)}


def pyplot_module() -> Any:
    """Import matplotlib's pyplot with a backend that only draws to files.

    Raises `MissingDependencyError` with the name of the extra if matplotlib is not installed.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise MissingDependencyError("drawing", "plot", str(error)) from error
    return pyplot
