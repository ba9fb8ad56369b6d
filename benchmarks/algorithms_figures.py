"""Figures of `algorithms_report.py`: panels of learning curves with bands over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from gem_eval.curves import pyplot_module, save_figure

__all__ = ["draw_panels", "smooth"]


def draw_panels(
    panels: dict[str, dict[tuple[str, str], list[list[float]]]], labels: Sequence[str], out: Path
) -> None:
    """Draw curves by name and colour: the mean over seeds, and a band from minimum to maximum."""
    pyplot = pyplot_module()
    rows = max(1, -(-len(panels) // 2))
    figure, grid = pyplot.subplots(
        rows, 2, figsize=(10, 3.4 * rows + 0.8), layout="constrained", squeeze=False
    )
    entries: dict[str, Any] = {}
    for axes in list(grid.flat)[len(panels) :]:
        axes.axis("off")
    for axes, (title, lines), label in zip(grid.flat, panels.items(), labels):
        for (name, colour), raw in lines.items():
            curves = [smooth(curve) for curve in raw]
            steps = range(min(map(len, curves)))
            seeds = [[curve[i] for curve in curves] for i in steps]
            (entries[name],) = axes.plot(steps, [fmean(values) for values in seeds], color=colour)
            if len(curves) > 1:
                axes.fill_between(
                    steps,
                    list(map(min, seeds)),
                    list(map(max, seeds)),
                    color=colour,
                    alpha=0.15,
                    linewidth=0,
                )
        axes.set(title=title, xlabel="update", ylabel=f"{label} (mean of 5 updates)")
        axes.grid(alpha=0.3)
    if entries:
        figure.legend(
            entries.values(), entries.keys(), loc="outside lower center", ncols=4, fontsize="small"
        )
    save_figure(figure, out)


def smooth(values: Sequence[float], width: int = 5) -> list[float]:
    """Return the mean of each value and those before it."""
    return [fmean(values[max(0, i + 1 - width) : i + 1]) for i in range(len(values))]
