"""Test-time scaling: the score against the compute of more turns and more samples."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gem_core.errors import ConfigError
from gem_eval.curves import pyplot_module, save_figure
from gem_eval.evaluation.score import Score
from gem_eval.evaluation.statistics import Estimate

__all__ = ["Point", "draw_scaling", "scaling_points"]

_ACROSS = 3
_COLOURS = ("#08519c", "#d94801", "#238b45", "#6a51a3", "#c51b8a", "#8c6d31")


@dataclass(frozen=True, slots=True)
class Point:
    """Compute and score of k samples under a turn limit."""

    env_id: str
    max_turns: int | None
    k: int
    compute: float
    """Sampled tokens of k episodes, or turns if the tokens are unknown."""
    unit: str
    score: Estimate
    """pass@k, or the mean return with k = 1 if the environment does not report success."""

    def as_json(self) -> dict[str, Any]:
        """Return JSON data."""
        names = ("env_id", "max_turns", "k", "compute", "unit")
        return {**{name: getattr(self, name) for name in names}, "score": self.score.as_json()}


def scaling_points(scores: Sequence[Score]) -> list[Point]:
    """Return a point per turn limit and k; all points of an environment have the same unit."""
    points: list[Point] = []
    for env_id in dict.fromkeys(s.env_id for s in scores):
        own = [s for s in scores if s.env_id == env_id]
        unit = "tokens" if all(s.tokens is not None for s in own) else "turns"
        for score in own:
            cost = score.tokens if unit == "tokens" else score.turns
            by_k = score.pass_at or ({} if score.mean_return is None else {1: score.mean_return})
            points += [
                Point(env_id, score.max_turns, k, k * cost, unit, estimate)
                for k, estimate in by_k.items()
                if cost is not None
            ]
    return points


def draw_scaling(points: Sequence[Point], out: str | os.PathLike[str], title: str = "") -> None:
    """Draw a panel per environment and a line per turn limit, with 95% intervals."""
    if not points:
        raise ConfigError("nothing to draw: all episodes failed")
    pyplot = pyplot_module()
    envs = list(dict.fromkeys(p.env_id for p in points))
    across = min(_ACROSS, len(envs))
    down = -(-len(envs) // across)
    figure, grid = pyplot.subplots(
        down,
        across,
        figsize=(1 + 4.5 * across, 4 * down),
        layout="constrained",
        squeeze=False,
        sharey=True,
    )
    panels = list(grid.flat)
    for panel, env_id in zip(panels, envs):
        own = [p for p in points if p.env_id == env_id]
        for i, limit in enumerate(dict.fromkeys(p.max_turns for p in own)):
            line = sorted((p for p in own if p.max_turns == limit), key=lambda p: p.k)
            colour = _COLOURS[i % len(_COLOURS)]
            x, y = [p.compute for p in line], [p.score.value for p in line]
            low = [p.score.value if p.score.low is None else p.score.low for p in line]
            high = [p.score.value if p.score.high is None else p.score.high for p in line]
            bars = [
                [max(0.0, value - end) for value, end in zip(y, low)],
                [max(0.0, end - value) for value, end in zip(y, high)],
            ]
            label = (
                "no turn limit" if limit is None else f"{limit} turn{'s' * (limit != 1)} at most"
            )
            panel.errorbar(
                x, y, yerr=bars, color=colour, marker="o", capsize=3, linewidth=1.5, label=label
            )
            for p in line:
                panel.annotate(
                    f"k={p.k}",
                    (p.compute, p.score.value),
                    textcoords="offset points",
                    xytext=(5, -11),
                    fontsize=7,
                )
        panel.set(title=env_id, xlabel=f"{own[0].unit} per seed, sum over k samples")
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        panel.grid(alpha=0.3)
        panel.legend(loc="best", fontsize=8)
    for panel in panels[len(envs) :]:
        panel.set_visible(False)
    for panel in panels[::across]:
        panel.set_ylabel("pass@k")
    if all(0 <= p.score.value <= 1 for p in points):
        panels[0].set_ylim(-0.02, 1.05)
    figure.suptitle(title)
    save_figure(figure, out)
