"""Figures of the studies: curves in panels, a dot per seed, and the heat map of transfer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from algorithms_figures import smooth
from report_statistics import t_interval

from gem_eval.curves import pyplot_module, save_figure
from studies_report.comparison import LEAST_SEEDS

__all__ = ["Line", "draw_dots", "draw_heat_map", "draw_panels"]

MOST_BANDS = 5
FONTS = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


class Line(NamedTuple):
    """Label, colour and style of a curve; readers who do not see the colour see the style."""

    label: str
    colour: str
    style: str


def draw_panels(
    panels: Mapping[str, Mapping[Line, Sequence[Sequence[float]]]],
    out: Path,
    *,
    ylabel: str | Mapping[str, str],
    columns: int = 4,
    levels: Mapping[str, float] | None = None,
    positions: Mapping[Line, Sequence[float]] | None = None,
    xlabel: str = "update",
    width: int = 5,
    each_seed: bool = False,
) -> None:
    """Draw curves per panel: the mean over seeds, and the 95 % interval of the mean as a band.

    With more than five curves, only the first has a band: more would hide each other. `each_seed`
    draws a thin line per seed instead of bands, for seeds that end far apart.

    `levels` are dotted lines for the model before training; `positions` are the x values of a
    curve, if they are not its updates. Each point is the mean of `width` updates.
    """
    pyplot = pyplot_module()
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    with pyplot.rc_context(FONTS):
        figure, grid = pyplot.subplots(
            rows,
            columns,
            figsize=(7.5, 3.4) if len(panels) == 1 else (3.4 * columns, 2.9 * rows + 0.3),
            layout="constrained",
            squeeze=False,
        )
        entries: dict[str, Any] = {}
        for axes in list(grid.flat)[len(panels) :]:
            axes.axis("off")
        for i, (axes, (title, lines)) in enumerate(zip(grid.flat, panels.items())):
            if levels and title in levels:
                entries["before training"] = axes.axhline(
                    levels[title], color="#444444", linewidth=1, linestyle=":"
                )
            for line, curves in lines.items():
                banded = not each_seed and (len(lines) <= MOST_BANDS or line == next(iter(lines)))
                entries[line.label] = _draw_curve(axes, line, curves, positions, width, banded)
                for curve in curves if each_seed else ():
                    thin = {"color": line.colour, "linewidth": 0.7, "alpha": 0.45}
                    axes.plot(smooth(curve, width), **thin)
            label = ylabel if isinstance(ylabel, str) else ylabel[title]
            if label.startswith("success"):  # the band can be wider than the possible values
                low, high = axes.get_ylim()
                axes.set_ylim(max(low, -0.03), min(high, 1.03))
            first = i % columns == 0 or not isinstance(ylabel, str)
            axes.set(title=title, ylabel=label if first else "")
            if i + columns >= len(panels):
                axes.set_xlabel(xlabel)
            axes.grid(alpha=0.25, linewidth=0.6)
        _draw_legend(figure, list(grid.flat)[len(panels) :], len(panels), entries)
        save_figure(figure, out)


def _draw_legend(figure: Any, free: Sequence[Any], panels: int, entries: dict[str, Any]) -> None:
    """Draw the legend in a free place of the grid, beside a single panel, or below all."""
    names = sorted(entries, key=lambda name: name == "before training")
    handles, style = [entries[name] for name in names], {"frameon": False, "handlelength": 2.6}
    if free:
        free[0].legend(handles, names, loc="center", **style)
    elif panels == 1:
        figure.legend(handles, names, loc="outside right upper", **style)
    else:
        figure.legend(handles, names, loc="outside lower center", ncols=len(names), **style)


def _draw_curve(
    axes: Any,
    line: Line,
    raw: Sequence[Sequence[float]],
    positions: Mapping[Line, Sequence[float]] | None,
    width: int,
    banded: bool,
) -> Any:
    curves = [smooth(curve, width) for curve in raw]
    seeds = list(zip(*curves))
    steps: Sequence[float] = range(len(seeds)) if positions is None else positions[line]
    means = [fmean(values) for values in seeds]
    style = {"color": line.colour, "linestyle": line.style, "linewidth": 1.8}
    (drawn,) = axes.plot(steps, means, **style)
    if banded and len(curves) >= LEAST_SEEDS:
        low, high = zip(*map(t_interval, seeds))
        axes.fill_between(steps, low, high, color=line.colour, alpha=0.13, linewidth=0)
    return drawn


def draw_dots(
    groups: Mapping[Line, Sequence[Sequence[float]]],
    categories: Sequence[str],
    levels: Sequence[float],
    out: Path,
    *,
    ylabel: str,
) -> None:
    """Draw a dot per seed, a bar at their mean, and the level before training, by category."""
    pyplot = pyplot_module()
    step = 0.8 / len(groups)
    with pyplot.rc_context(FONTS):
        figure, axes = pyplot.subplots(figsize=(7.5, 3.4), layout="constrained")
        entries: dict[str, Any] = {}
        for i, (line, seeds) in enumerate(groups.items()):
            for x, values in enumerate(zip(*seeds)):
                place = x - 0.4 + step * (i + 0.5)
                style = {"color": line.colour, "s": 18, "alpha": 0.8, "linewidths": 0}
                entries[line.label] = axes.scatter([place] * len(values), values, **style)
                ends = (place - 0.4 * step, place + 0.4 * step)
                axes.hlines(fmean(values), *ends, color=line.colour, linewidth=1.8)
        for x, level in enumerate(levels):
            style = {"color": "#444444", "linewidth": 1, "linestyle": ":"}
            entries["before training"] = axes.hlines(level, x - 0.45, x + 0.45, **style)
        axes.set_xticks(range(len(categories)), categories)
        axes.set(ylabel=ylabel, ylim=(-0.03, 1.03))
        axes.tick_params(axis="x", length=0)
        axes.grid(axis="y", alpha=0.25, linewidth=0.6)
        _draw_legend(figure, [], 1, entries)
        save_figure(figure, out)


def draw_heat_map(
    values: Sequence[Sequence[float | None]],
    outside: Sequence[Sequence[bool]],
    rows: Sequence[str],
    columns: Sequence[str],
    out: Path,
) -> None:
    """Draw differences; a cell whose interval contains 0 has a grey number, the others are bold."""
    pyplot = pyplot_module()
    numbers = [v for row in values for v in row if v is not None]
    limit = max(map(abs, numbers)) or 1.0
    with pyplot.rc_context({**FONTS, "axes.spines.left": False, "axes.spines.bottom": False}):
        size = (0.95 * len(columns) + 3.2, 0.36 * len(rows) + 2.2)
        figure, axes = pyplot.subplots(figsize=size, layout="constrained")
        shown = [[float("nan") if v is None else v for v in row] for row in values]
        image = axes.imshow(shown, cmap="PuOr_r", vmin=-limit, vmax=limit, aspect="auto")
        axes.set_xticks(range(len(columns)), columns, rotation=30, ha="right")
        axes.set_yticks(range(len(rows)), rows)
        axes.tick_params(length=0)
        axes.set(xlabel="trained on", ylabel="evaluated on")
        for y, row in enumerate(values):
            for x, value in enumerate(row):
                if value is None:
                    continue
                dark = abs(value) > 0.6 * limit
                bold = outside[y][x]
                colour = "white" if dark else "black" if bold else "#555555"
                weight = "bold" if bold else "normal"
                text = "0" if abs(value) < 0.005 else f"{value:+.2f}"
                axes.text(
                    x, y, text, ha="center", va="center", color=colour, weight=weight, fontsize=10
                )
        bar = figure.colorbar(image, ax=axes, fraction=0.03, pad=0.02)
        bar.set_label("return minus untrained model")
        bar.outline.set_visible(False)
        save_figure(figure, out)
