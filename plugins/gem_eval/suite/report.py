"""Suite report: results by environment, scores by family and outcomes, as Markdown and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from gem_core.types import Episode
from gem_eval.suite.suite import Suite
from gem_eval.suite.taxonomy import OUTCOMES, outcome

__all__ = [
    "FamilyScore",
    "IdResult",
    "family_scores",
    "id_results",
    "markdown_report",
    "markdown_table",
    "table",
]


@dataclass(frozen=True)
class IdResult:
    """One player's result on one environment. Failed episodes are in no mean."""

    player: str
    id: str
    episodes: int
    failed: int
    score: float
    """The mean return."""
    success: float
    """The share of solved episodes."""
    turns: float
    """The mean number of turns."""
    outcomes: Mapping[str, int]
    """The number of episodes by outcome."""

    def as_json(self) -> dict[str, Any]:
        """Return JSON data."""
        return asdict(self)


@dataclass(frozen=True)
class FamilyScore:
    """One player's result on one family, or on all of them."""

    player: str
    family: str
    ids: int
    """The number of environments played."""
    episodes: int
    score: float
    """The mean over the ids of the mean return, so that every id has the same weight."""
    success: float
    """The mean over the ids of the share of solved episodes."""
    turns: float
    outcomes: Mapping[str, float]
    """The shares of the episodes by outcome."""

    def as_json(self) -> dict[str, Any]:
        """Return JSON data."""
        return asdict(self)


def id_results(player: str, suite: Suite, episodes: Sequence[Episode]) -> list[IdResult]:
    """Return the results of a player by environment, without those that it did not play."""
    results = []
    for id in suite.ids:
        played = [episode for episode in episodes if episode.env_id == id]
        known = [episode for episode in played if not episode.failed]
        if played:
            results.append(
                IdResult(
                    player,
                    id,
                    len(played),
                    len(played) - len(known),
                    _mean(episode.total_reward or 0.0 for episode in known),
                    _mean(float(bool(episode.success)) for episode in known),
                    _mean(float(len(episode.turns)) for episode in known),
                    dict(Counter(map(outcome, played))),
                )
            )
    return results


def family_scores(suite: Suite, results: Sequence[IdResult]) -> list[FamilyScore]:
    """Return the scores of every player by family, with `all` as the last."""
    groups = [*suite.families.items(), ("all", suite.ids)]
    players = dict.fromkeys(result.player for result in results)
    scores = []
    for family, ids in groups:
        for player in players:
            chosen = [r for r in results if r.player == player and r.id in ids]
            if chosen:
                scores.append(_family_score(player, family, chosen))
    return scores


def _family_score(player: str, family: str, results: Sequence[IdResult]) -> FamilyScore:
    known = [result for result in results if result.episodes > result.failed]
    episodes = sum(result.episodes for result in results)
    counts: Counter[str] = Counter()
    for result in results:
        counts.update(result.outcomes)
    turns = sum(result.turns * (result.episodes - result.failed) for result in known)
    return FamilyScore(
        player,
        family,
        len(results),
        episodes,
        _mean(result.score for result in known),
        _mean(result.success for result in known),
        turns / max(1, sum(result.episodes - result.failed for result in known)),
        {name: counts[name] / episodes for name in OUTCOMES},
    )


def _mean(numbers: Iterable[float]) -> float:
    listed = list(numbers)
    return fmean(listed) if listed else 0.0


def table(scores: Sequence[FamilyScore]) -> tuple[list[str], list[list[str]]]:
    """Return the headers and rows of the table, family by family."""
    shown = [name for name in OUTCOMES if any(score.outcomes[name] for score in scores)]
    headers = ["FAMILY", "PLAYER", "IDS", "EPISODES", "SCORE", "SUCCESS", "TURNS"]
    rows = [
        [
            score.family,
            score.player,
            str(score.ids),
            str(score.episodes),
            f"{score.score:.3f}",
            f"{score.success:.0%}",
            f"{score.turns:.1f}",
            *(f"{score.outcomes[name]:.0%}" for name in shown),
        ]
        for score in scores
    ]
    return [*headers, *map(str.upper, shown)], rows


def markdown_report(suite: Suite, results: Sequence[IdResult], skipped: Mapping[str, str]) -> str:
    """Return the report as a Markdown page."""
    lines = [
        f"# {suite.name}",
        "",
        f"{len(suite.ids)} environments, {suite.seeds} seeds from {suite.first_seed}. SCORE is the "
        "mean return, SUCCESS the share of solved episodes, both averaged over the environments "
        "of a family. The other columns are shares of episodes by outcome.",
        "",
        *markdown_table(*table(family_scores(suite, results))),
        "",
        *markdown_table(["ID", "PLAYER", "SCORE", "SUCCESS", "OUTCOMES"], _id_rows(results)),
    ]
    if skipped:
        lines += ["", "Not played, because packages or programs are missing:", ""]
        lines += [f"- `{id}`: {reason}" for id, reason in skipped.items()]
    return "\n".join(lines) + "\n"


def _id_rows(results: Sequence[IdResult]) -> list[list[str]]:
    return [
        [
            f"`{result.id}`",
            result.player,
            f"{result.score:.3f}",
            f"{result.success:.0%}",
            ", ".join(f"{count} {name}" for name, count in sorted(result.outcomes.items())),
        ]
        for result in results
    ]


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    return [
        f"| {' | '.join(headers)} |",
        f"|{'---|' * len(headers)}",
        *[f"| {' | '.join(row)} |" for row in rows],
    ]
