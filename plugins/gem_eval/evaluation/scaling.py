"""Test-time scaling: the score against the compute of more turns and more samples."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gem_core.errors import ConfigError
from gem_eval.curves import pyplot_module, save_figure
from gem_eval.evaluation.score import Score
from gem_eval.evaluation.statistics import Estimate

__all__ = ["UNITS", "Point", "draw_scaling", "scaling_points"]

UNITS = ("tokens", "turns", "episodes")
"""Units of the x axis."""

_ACROSS = 3
_WIDEST_TITLE = 44
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_COLOURS = ("#08519c", "#d94801", "#238b45", "#6a51a3", "#c51b8a", "#8c6d31")


@dataclass(frozen=True, slots=True)
class Point:
    """Compute and score of k samples under a turn limit."""

    env_id: str
    max_turns: int | None
    k: int
    compute: float
    """Tokens, turns or number of k episodes."""
    unit: str
    """`tokens`, `turns` or `episodes`."""
    score: Estimate
    """pass@k, or the mean return with k = 1 if the environment never reports success."""
    judged: bool = True
    """Whether the score is pass@k."""

    def as_json(self) -> dict[str, Any]:
        """Return JSON data."""
        names = ("env_id", "max_turns", "k", "compute", "unit")
        return {**{name: getattr(self, name) for name in names}, "score": self.score.as_json()}


def scaling_points(scores: Sequence[Score], unit: str = "tokens") -> list[Point]:
    """Return a point per turn limit and k.

    All points of an environment have the same unit: `unit`, or turns if its tokens are unknown.
    """
    if unit not in UNITS:
        raise ConfigError(f"the unit of compute is one of {', '.join(UNITS)}; got {unit!r}")
    points: list[Point] = []
    for env_id in dict.fromkeys(s.env_id for s in scores):
        own = [s for s in scores if s.env_id == env_id]
        judged = any(s.pass_at for s in own)
        own_unit = unit
        if unit == "tokens" and any(s.tokens is None for s in own):
            own_unit = "turns"
        for score in own:
            cost = {"tokens": score.tokens, "turns": score.turns, "episodes": 1.0}[own_unit]
            by_k = score.pass_at if judged else {1: score.mean_return}
            points += [
                Point(env_id, score.max_turns, k, k * cost, own_unit, estimate, judged)
                for k, estimate in by_k.items()
                if cost is not None and estimate is not None
            ]
    return points


def draw_scaling(points: Sequence[Point], out: str | os.PathLike[str], title: str = "") -> None:
    """Draw a panel per environment, with a line per turn limit and 95% intervals.

    Colours are turn limits and markers are k, so no label can cover a line.
    """
    if not points:
        raise ConfigError("nothing to draw: all episodes failed")
    pyplot = pyplot_module()
    envs = list(dict.fromkeys(p.env_id for p in points))
    across = min(_ACROSS, len(envs))
    down = -(-len(envs) // across)
    figure, grid = pyplot.subplots(
        down,
        across,
        figsize=(1.5 + 4.5 * across, 0.8 + 3.6 * down),
        layout="constrained",
        squeeze=False,
        sharey=True,
    )
    limits = list(dict.fromkeys(p.max_turns for p in points))
    colours = {limit: _COLOURS[i % len(_COLOURS)] for i, limit in enumerate(limits)}
    ks = sorted({p.k for p in points})
    markers = {k: _MARKERS[i % len(_MARKERS)] for i, k in enumerate(ks)}
    panels = list(grid.flat)
    for panel, env_id in zip(panels, envs):
        own = [p for p in points if p.env_id == env_id]
        for limit in limits:
            line = sorted((p for p in own if p.max_turns == limit), key=lambda p: p.k)
            _draw_line(panel, line, colours[limit], markers)
        name = env_id if own[0].judged else f"{env_id} (mean return)"
        panel.set_title("\n".join(textwrap.wrap(name, _WIDEST_TITLE)), fontsize=10)
        panel.set_xlabel(f"{own[0].unit} per seed, sum over k samples")
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        panel.grid(alpha=0.3)
    for panel in panels[len(envs) :]:
        panel.set_visible(False)
    for panel in panels[::across]:
        panel.set_ylabel("pass@k")
    if all(0 <= p.score.value <= 1 for p in points):
        panels[0].set_ylim(-0.02, 1.05)
    handles = [
        pyplot.Line2D([], [], color=colours[limit], label=_limit_label(limit)) for limit in limits
    ] + [
        pyplot.Line2D([], [], color="#636363", marker=markers[k], linestyle="", label=f"k = {k}")
        for k in ks
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4 if across == 1 else 8)
    figure.suptitle(title)
    save_figure(figure, out)


def _draw_line(panel: Any, line: Sequence[Point], colour: str, markers: Mapping[int, str]) -> None:
    x, y = [p.compute for p in line], [p.score.value for p in line]
    low = [p.score.value if p.score.low is None else p.score.low for p in line]
    high = [p.score.value if p.score.high is None else p.score.high for p in line]
    bars = [
        [max(0.0, value - end) for value, end in zip(y, low)],
        [max(0.0, end - value) for value, end in zip(y, high)],
    ]
    panel.errorbar(x, y, yerr=bars, color=colour, capsize=3, linewidth=1.5)
    for p in line:
        panel.plot(p.compute, p.score.value, color=colour, marker=markers[p.k])


def _limit_label(limit: int | None) -> str:
    return "no turn limit" if limit is None else f"{limit} turn{'s' * (limit != 1)} at most"
