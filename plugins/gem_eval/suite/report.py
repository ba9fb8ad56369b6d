"""Suite report: scores by family and outcomes, for each player, as Markdown and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from gem_core.types import Episode
from gem_eval.suite.suite import Suite
from gem_eval.suite.taxonomy import OUTCOMES, outcome_shares

__all__ = ["FamilyScore", "family_scores", "markdown_report", "report_rows"]


@dataclass(frozen=True)
class FamilyScore:
    """One player's result on one family, or on all of them."""

    player: str
    family: str
    episodes: int
    score: float
    """The mean over the ids of the mean return, so that every id has the same weight."""
    success: float
    """The mean over the ids of the share of solved episodes."""
    turns: float
    outcomes: Mapping[str, float]

    def as_json(self) -> dict[str, Any]:
        """Return JSON data."""
        return {**vars(self), "outcomes": dict(self.outcomes)}


def family_scores(player: str, suite: Suite, episodes: Sequence[Episode]) -> list[FamilyScore]:
    """Return the scores of a player by family, with `all` as the last.

    Failed episodes count among the outcomes, but in no mean.
    """
    by_id = {id: [e for e in episodes if e.env_id == id] for id in suite.ids}
    groups = [*suite.families.items(), ("all", suite.ids)]
    return [
        _family_score(player, family, [by_id[id] for id in ids])
        for family, ids in groups
        if any(by_id[id] for id in ids)
    ]


def _family_score(player: str, family: str, by_id: Sequence[Sequence[Episode]]) -> FamilyScore:
    known = [[e for e in episodes if not e.failed] for episodes in by_id]
    known = [episodes for episodes in known if episodes]
    every = [e for episodes in by_id for e in episodes]
    return FamilyScore(
        player,
        family,
        len(every),
        _mean([_mean([e.total_reward or 0.0 for e in episodes]) for episodes in known]),
        _mean([_mean([float(bool(e.success)) for e in episodes]) for episodes in known]),
        _mean([len(e.turns) for episodes in known for e in episodes]),
        outcome_shares(every),
    )


def _mean(numbers: Sequence[float]) -> float:
    return fmean(numbers) if numbers else 0.0


def report_rows(scores: Sequence[FamilyScore]) -> tuple[list[str], list[list[str]]]:
    """Return the headers and rows of the table, family by family."""
    families = list(dict.fromkeys(score.family for score in scores))
    ordered = sorted(scores, key=lambda score: families.index(score.family))
    shown = [name for name in OUTCOMES if any(score.outcomes[name] for score in scores)]
    rows = [
        [
            score.family,
            score.player,
            str(score.episodes),
            f"{score.score:.3f}",
            f"{score.success:.0%}",
            f"{score.turns:.1f}",
            *(f"{score.outcomes[name]:.0%}" for name in shown),
        ]
        for score in ordered
    ]
    return [
        "FAMILY",
        "PLAYER",
        "EPISODES",
        "SCORE",
        "SUCCESS",
        "TURNS",
        *map(str.upper, shown),
    ], rows


def markdown_report(suite: Suite, scores: Sequence[FamilyScore], skipped: Mapping[str, str]) -> str:
    """Return the report as a Markdown page."""
    headers, rows = report_rows(scores)
    lines = [
        f"# {suite.name}",
        "",
        f"{len(suite.ids)} environments, {suite.seeds} seeds from {suite.first_seed}. SCORE is the "
        "mean return, SUCCESS the share of solved episodes, both averaged over the environments "
        "of a family. The other columns are shares of episodes by outcome.",
        "",
        f"| {' | '.join(headers)} |",
        f"|{'---|' * len(headers)}",
        *[f"| {' | '.join(row)} |" for row in rows],
    ]
    if skipped:
        lines += ["", "Not played, because packages or programs are missing:", ""]
        lines += [f"- `{id}`: {reason}" for id, reason in skipped.items()]
    return "\n".join(lines) + "\n"
