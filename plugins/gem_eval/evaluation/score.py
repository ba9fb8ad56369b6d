"""Score: one row of a table, how one player did on one environment. Nothing in it depends on how fast or in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Any

from gem_core.types import Episode, Turn
from gem_eval.evaluation.statistics import Estimate, mean_by_seed, pass_at_k, pass_hat_k

__all__ = ["Score", "sampled_tokens", "score", "table_rows"]


@dataclass(frozen=True, slots=True)
class Score:
    """Means are over seeds, each seed's samples averaged first. Failed episodes, whose outcome is unknown, are only counted."""

    env_id: str
    player: str
    max_turns: int | None
    episodes: int
    seeds: int
    failed: int
    """Episodes whose outcome is unknown."""
    errors: int
    """Errors of the environment or the policy that were met: those that ended an episode and those that a retry got over."""
    stops: dict[str, int]
    """Why episodes ended."""
    mean_return: Estimate | None
    success: Estimate | None
    """None where the environment never says what success is; where it does, an episode that a limit cut short is none."""
    pass_at: dict[int, Estimate]
    """By k: at least one of k samples is a success."""
    pass_hat: dict[int, Estimate]
    """By k: all of k samples are."""
    turns: float | None
    tokens: float | None
    """Sampled tokens of an episode; None where neither ids nor the server say."""
    tool_uses: float | None
    """Turns of an episode that called a tool."""
    tool_errors: float | None
    format_errors: float | None
    """The share of episodes with an answer the environment could not read."""

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        plain = {f.name: _plain(getattr(self, f.name)) for f in fields(self)}
        return {"return": plain.pop("mean_return"), **plain}


def score(
    env_id: str, player: str, episodes: Sequence[Episode], max_turns: int | None = None
) -> Score:
    """The score of the episodes of one environment."""
    known = [e for e in episodes if not e.failed]
    by_seed: dict[Any, list[Episode]] = {}
    for episode in known:
        by_seed.setdefault(episode.group, []).append(episode)
    told = any(e.success is not None for e in known)
    counts = (
        [(len(group), sum(bool(e.success) for e in group)) for group in by_seed.values()]
        if told
        else []
    )
    most = max((n for n, _ in counts), default=0)
    ks = [
        k for k in range(1, most + 1) if k == most or k & (k - 1) == 0
    ]  # 1, 2, 4, 8, ... and all of them
    tokens = [
        sum(filter(None, counted))
        for e in known
        if None not in (counted := [sampled_tokens(t) for t in e.turns])
    ]
    return Score(
        env_id=env_id,
        player=player,
        max_turns=max_turns,
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
        format_errors=_mean([any(t.info.get("format_error") for t in e.turns) for e in known]),
    )


def sampled_tokens(turn: Turn) -> int | None:
    """The tokens a turn sampled; None where nobody counted them."""
    return len(turn.action_ids) if turn.action_ids else turn.tokens


def table_rows(scores: Sequence[Score]) -> tuple[list[str], list[list[str]]]:
    """Headers and cells. pass@k and pass^k are shown for the largest k that any row has, beside success, which is k = 1."""
    k = max((k for s in scores for k in s.pass_at), default=1)
    columns: list[tuple[str, Callable[[Score], str]]] = [
        ("ENVIRONMENT", lambda s: s.env_id),
        ("PLAYER", lambda s: s.player),
        ("TURNS<=", lambda s: "-" if s.max_turns is None else str(s.max_turns)),
        ("EPISODES", lambda s: str(s.episodes)),
        ("SEEDS", lambda s: str(s.seeds)),
        ("RETURN [95%]", lambda s: _shown(s.mean_return, _number)),
        ("SUCCESS [95%]", lambda s: _shown(s.success, _percent)),
        (f"pass@{k} [95%]", lambda s: _shown(s.pass_at.get(k), _percent)),
        (f"pass^{k} [95%]", lambda s: _shown(s.pass_hat.get(k), _percent)),
        ("TURNS", lambda s: _optional(s.turns, "{:.1f}")),
        ("TOKENS", lambda s: _optional(s.tokens, "{:.0f}")),
        ("TOOLS", lambda s: _optional(s.tool_uses, "{:.1f}")),
        ("UNREADABLE", lambda s: _optional(s.format_errors, "{:.0%}")),
        ("ERRORS", lambda s: str(s.errors)),
        ("FAILED", lambda s: str(s.failed)),
    ]
    if k == 1:
        columns = [c for c in columns if not c[0].startswith("pass")]
    if all(s.max_turns is None for s in scores):
        columns = [c for c in columns if c[0] != "TURNS<="]
    return [name for name, _ in columns], [[cell(s) for _, cell in columns] for s in scores]


def _over_seeds(
    rate: Callable[[int, int, int], float], counts: Sequence[tuple[int, int]], ks: Sequence[int]
) -> dict[int, Estimate]:
    """By k, over the seeds that have k known samples."""
    found = {k: mean_by_seed([rate(n, c, k) for n, c in counts if n >= k]) for k in ks}
    return {k: estimate for k, estimate in found.items() if estimate is not None}


def _mean(numbers: Sequence[float]) -> float | None:
    return fmean(numbers) if numbers else None


def _plain(value: Any) -> Any:
    if isinstance(value, Estimate):
        return value.as_json()
    return {str(k): _plain(v) for k, v in value.items()} if isinstance(value, dict) else value


def _shown(estimate: Estimate | None, form: Callable[[float], str]) -> str:
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
