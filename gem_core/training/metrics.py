"""Batch metrics: sums over a batch of episodes that can be added across ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from gem_core.types import Episode, Failure

__all__ = ["BatchMetrics", "logprob_gap"]

Sums = dict[str, tuple[float, int]]
"""(sum, count) by name."""


@dataclass(frozen=True, slots=True)
class BatchMetrics:
    """Sums over episodes. All but the first three exclude failed episodes."""

    episodes: int = 0
    failed: int = 0
    attempts: int = 0
    finished: int = 0
    judged: int = 0
    """Finished episodes whose environment reported success or not."""
    successes: int = 0
    returns: float = 0.0
    turns: int = 0
    masked_turns: int = 0
    tool_uses: int = 0
    tokens: int = 0
    """Trained tokens."""
    breakdown: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """(sum, count) by name: per environment of a mixture, and per turn."""
    failure: Failure | None = None
    """The failure of the first failed episode."""

    @classmethod
    def of(
        cls, episodes: Sequence[Episode], per_turn: Sequence[Sequence[float]] | None = None
    ) -> BatchMetrics:
        """Compute the metrics of one rank's episodes; `per_turn` are their advantages."""
        finished = [e for e in episodes if not e.failed]
        return cls(
            episodes=len(episodes),
            failed=len(episodes) - len(finished),
            attempts=sum(e.attempts for e in episodes),
            finished=len(finished),
            judged=sum(e.success is not None for e in finished),
            successes=sum(bool(e.success) for e in finished),
            returns=sum(e.total_reward or 0.0 for e in finished),
            turns=sum(len(e.turns) for e in finished),
            masked_turns=sum(not e.trained(t) for e in finished for t in range(len(e.turns))),
            tokens=sum(
                len(turn.action_ids)
                for e in finished
                for t, turn in enumerate(e.turns)
                if e.trained(t)
            ),
            tool_uses=sum(bool(turn.info.get("use_tool")) for e in finished for turn in e.turns),
            breakdown=_breakdown(episodes, per_turn),
            failure=next((e.failure for e in episodes if e.failure is not None), None),
        )

    @classmethod
    def total(cls, parts: Iterable[BatchMetrics]) -> BatchMetrics:
        """Add the metrics of all ranks."""
        listed = list(parts)
        breakdown: Sums = {}
        for part in listed:
            for name, (total, count) in part.breakdown.items():
                _add(breakdown, name, total, count)
        sums = {
            f.name: sum(getattr(part, f.name) for part in listed)
            for f in fields(cls)
            if f.name not in ("breakdown", "failure")
        }
        failure = next((part.failure for part in listed if part.failure is not None), None)
        return cls(**sums, breakdown=breakdown, failure=failure)

    def means(self) -> dict[str, float]:
        """Return the mean per name; an episode cut by a limit counts as no success."""
        means: dict[str, float] = {}
        if self.episodes:
            means["failed"] = self.failed / self.episodes
            means["attempts"] = self.attempts / self.episodes
        if self.finished:
            for name in ("turns", "masked_turns", "tool_uses"):
                means[name] = getattr(self, name) / self.finished
            means["return"] = self.returns / self.finished
            if self.judged:
                means["success"] = self.successes / self.finished
        for name, (total, count) in self.breakdown.items():
            place, _, what = name.rpartition("/")
            unjudged = what == "success" and not self.breakdown[f"{place}/judged"][0]
            if what != "judged" and not unjudged:
                means[name] = total / count
        return means


def logprob_gap(sampler: Iterable[float], trainer: Iterable[float]) -> dict[str, float]:
    """Return the mean and the 99th percentile of |sampler's − trainer's logprob| over tokens.

    Takes the trained tokens only. Returns nothing if there are none.
    """
    gaps = sorted(abs(a - b) for a, b in zip(sampler, trainer, strict=True))
    if not gaps:
        return {}
    return {
        "logprob_gap": sum(gaps) / len(gaps),
        "logprob_gap_p99": gaps[min(int(0.99 * len(gaps)), len(gaps) - 1)],
    }


def _breakdown(episodes: Sequence[Episode], per_turn: Sequence[Sequence[float]] | None) -> Sums:
    """Return the sums per turn and, for a mixture, per environment."""
    sums: Sums = {}
    for number, episode in enumerate(episodes):
        if episode.failed:
            continue
        advantages = None if per_turn is None else per_turn[number]
        env = f"env/{episode.component}/" if episode.component else None
        following = 0.0
        success, judged = float(bool(episode.success)), float(episode.success is not None)
        for t in reversed(range(len(episode.turns))):
            following += episode.turns[t].reward or 0.0
            turn = f"turn/{_bucket(t)}/"
            _add(sums, turn + "return", following)
            _add(sums, turn + "tokens", len(episode.turns[t].action_ids))
            _add(sums, turn + "success", success)
            _add(sums, turn + "judged", judged)
            if advantages is not None and episode.trained(t):
                for place in ("", turn) if env is None else ("", turn, env):
                    _add(sums, place + "advantage_abs", abs(advantages[t]))
        if env is not None:
            _add(sums, env + "return", following)
            _add(sums, env + "turns", len(episode.turns))
            _add(sums, env + "success", success)
            _add(sums, env + "judged", judged)
    return dict(sorted(sums.items()))


def _bucket(turn: int) -> str:
    """Return the label of a turn, counted from 0: 0, 1, 2-3, 4-7, 8-15, 16-31 or 32+."""
    if turn < 2:
        return str(turn)
    first = 1 << (turn.bit_length() - 1)
    return "32+" if turn >= 32 else f"{first}-{2 * first - 1}"


def _add(sums: Sums, name: str, value: float, count: int = 1) -> None:
    total, seen = sums.get(name, (0.0, 0))
    sums[name] = (total + value, seen + count)
