"""Score of one player on one environment: one row of the results table.

A score does not depend on timing or on the order of the episodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Any

from gem_core.types import Episode, FinishReason, Turn
from gem_eval.evaluation.statistics import Estimate, mean_by_seed, pass_at_k, pass_hat_k

__all__ = ["Score", "sampled_tokens", "score", "table_rows"]


@dataclass(frozen=True, slots=True)
class Score:
    """Scores of one player on one environment.

    Means are over seeds, with the samples of a seed averaged first. Failed episodes are counted,
    but their outcome is unknown, so the means exclude them.
    """

    env_id: str
    player: str
    max_turns: int | None
    max_tokens: int | None
    """Token limit of a completion; None for a baseline player."""
    episodes: int
    seeds: int
    failed: int
    """Failed episodes."""
    errors: int
    """Environment and policy errors, including those that a retry recovered from."""
    stops: dict[str, int]
    """Number of episodes by stop reason."""
    mean_return: Estimate | None
    success: Estimate | None
    """None if the environment does not report success. An episode cut by a limit counts as 0."""
    pass_at: dict[int, Estimate]
    """By k: the probability that at least one of k samples succeeds."""
    pass_hat: dict[int, Estimate]
    """By k: the probability that all k samples succeed."""
    turns: float | None
    tokens: float | None
    """Sampled tokens per episode; None if the record has neither ids nor the server's counts."""
    tool_uses: float | None
    """Turns per episode that called a tool."""
    tool_errors: float | None
    format_errors: float | None
    """Share of episodes with a complete answer that the environment could not parse."""
    cut: float | None
    """Share of episodes with a completion that was cut at the token limit."""
    empty: float | None
    """Share of episodes with an answer that was empty, but neither cut nor refused."""
    refused: float | None
    """Share of episodes with an answer that the model refused or the server filtered."""

    def as_json(self) -> dict[str, Any]:
        """Return JSON data."""
        plain = {f.name: _plain(getattr(self, f.name)) for f in fields(self)}
        return {"return": plain.pop("mean_return"), **plain}


def score(
    env_id: str,
    player: str,
    episodes: Sequence[Episode],
    max_turns: int | None = None,
    max_tokens: int | None = None,
) -> Score:
    """Score the episodes of one environment; the limits are those they were played with."""
    known = [e for e in episodes if not e.failed]
    by_seed: dict[Any, list[Episode]] = {}
    for episode in known:
        by_seed.setdefault(episode.group, []).append(episode)
    counts: list[tuple[int, int]] = []
    if any(e.success is not None for e in known):
        counts = [(len(group), sum(bool(e.success) for e in group)) for group in by_seed.values()]
    most = max((n for n, _ in counts), default=0)
    ks = [k for k in range(1, most + 1) if k == most or k & (k - 1) == 0]  # 1, 2, 4, ... and most
    tokens = [
        sum(filter(None, counted))
        for e in known
        if None not in (counted := [sampled_tokens(t) for t in e.turns])
    ]
    return Score(
        env_id=env_id,
        player=player,
        max_turns=max_turns,
        max_tokens=max_tokens,
        episodes=len(episodes),
        seeds=len({e.group for e in episodes}),
        failed=len(episodes) - len(known),
        errors=sum(e.attempts - 1 + (e.failure is not None) for e in episodes),
        stops=dict(sorted(Counter(e.stop.value for e in episodes).items())),
        mean_return=mean_by_seed(
            [fmean(e.total_reward or 0.0 for e in group) for group in by_seed.values()]
        ),
        success=mean_by_seed([c / n for n, c in counts]),
        pass_at=_over_seeds(pass_at_k, counts, ks),
        pass_hat=_over_seeds(pass_hat_k, counts, ks),
        turns=_mean([len(e.turns) for e in known]),
        tokens=_mean(tokens) if len(tokens) == len(known) else None,
        tool_uses=_mean([sum(bool(t.info.get("use_tool")) for t in e.turns) for e in known]),
        tool_errors=_mean([sum(bool(t.info.get("tool_error")) for t in e.turns) for e in known]),
        format_errors=_share(
            known, lambda t: t.info.get("format_error") and t.finish is FinishReason.STOP
        ),
        cut=_share(known, lambda t: t.finish is FinishReason.LENGTH),
        empty=_share(known, lambda t: t.finish is FinishReason.EMPTY),
        refused=_share(known, lambda t: t.finish is FinishReason.REFUSED),
    )


def sampled_tokens(turn: Turn) -> int | None:
    """Return the number of sampled tokens of a turn, or None if it is unknown."""
    return len(turn.action_ids) if turn.action_ids else turn.tokens


def table_rows(scores: Sequence[Score]) -> tuple[list[str], list[list[str]]]:
    """Return the headers and cells of the results table.

    pass@k and pass^k are for the largest k of any row; success is k = 1. CUT@n has the token limit
    n. Columns of rare events are omitted if nothing happened.
    """
    k = max((k for s in scores for k in s.pass_at), default=1)
    cap = max((s.max_tokens for s in scores if s.max_tokens is not None), default=None)
    limited = any(s.max_turns is not None for s in scores)
    # name, cell, whether the column is in the table
    columns: list[tuple[str, Callable[[Score], str], bool]] = [
        ("ENVIRONMENT", lambda s: s.env_id, True),
        ("PLAYER", lambda s: s.player, True),
        ("TURNS<=", lambda s: "-" if s.max_turns is None else str(s.max_turns), limited),
        ("EPISODES", lambda s: str(s.episodes), True),
        ("SEEDS", lambda s: str(s.seeds), True),
        ("RETURN [95%]", lambda s: _with_interval(s.mean_return, _number), True),
        ("SUCCESS [95%]", lambda s: _with_interval(s.success, _percent), True),
        (f"pass@{k} [95%]", lambda s: _with_interval(s.pass_at.get(k), _percent), k > 1),
        (f"pass^{k} [95%]", lambda s: _with_interval(s.pass_hat.get(k), _percent), k > 1),
        ("TURNS", lambda s: _optional(s.turns, "{:.1f}"), True),
        ("TOKENS", lambda s: _optional(s.tokens, "{:.0f}"), True),
        ("TOOLS", lambda s: _optional(s.tool_uses, "{:.1f}"), any(s.tool_uses for s in scores)),
        ("UNREADABLE", lambda s: _optional(s.format_errors, "{:.0%}"), True),
        (f"CUT@{cap}", lambda s: _optional(s.max_tokens and s.cut, "{:.0%}"), cap is not None),
        ("EMPTY", lambda s: _optional(s.empty, "{:.0%}"), any(s.empty for s in scores)),
        ("REFUSED", lambda s: _optional(s.refused, "{:.0%}"), any(s.refused for s in scores)),
        ("ERRORS", lambda s: str(s.errors), True),
        ("FAILED", lambda s: str(s.failed), True),
    ]
    shown = [(name, cell) for name, cell, is_shown in columns if is_shown]
    return [name for name, _ in shown], [[cell(s) for _, cell in shown] for s in scores]


def _over_seeds(
    rate: Callable[[int, int, int], float], counts: Sequence[tuple[int, int]], ks: Sequence[int]
) -> dict[int, Estimate]:
    """Estimate a rate by k, over the seeds with at least k samples that did not fail."""
    estimates = {k: mean_by_seed([rate(n, c, k) for n, c in counts if n >= k]) for k in ks}
    return {k: estimate for k, estimate in estimates.items() if estimate is not None}


def _share(episodes: Sequence[Episode], event: Callable[[Turn], Any]) -> float | None:
    """Return the share of episodes in which the event occurs in a turn."""
    return _mean([any(map(event, e.turns)) for e in episodes])


def _mean(numbers: Sequence[float]) -> float | None:
    return fmean(numbers) if numbers else None


def _plain(value: Any) -> Any:
    if isinstance(value, Estimate):
        return value.as_json()
    return {str(k): _plain(v) for k, v in value.items()} if isinstance(value, dict) else value


def _with_interval(estimate: Estimate | None, form: Callable[[float], str]) -> str:
    if estimate is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return form(estimate.value)
    return f"{form(estimate.value)} [{form(estimate.low)}, {form(estimate.high)}]"


def _number(value: float) -> str:
    return f"{value:.3f}"


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _optional(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
