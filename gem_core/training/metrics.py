"""Metrics: how a batch of episodes went, as sums that ranks can add, so that every rank reports the same names and numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from gem_core.types import Episode

__all__ = ["BatchMetrics", "advantage_sizes"]


@dataclass(frozen=True, slots=True)
class BatchMetrics:
    """Sums over episodes; failed ones count only as failed."""

    episodes: int = 0
    failed: int = 0
    attempts: int = 0
    finished: int = 0
    judged: int = 0
    """Finished episodes whose environment said whether they were a success."""
    successes: int = 0
    returns: float = 0.0
    turns: int = 0
    masked_turns: int = 0
    tool_uses: int = 0
    tokens: int = 0
    """Trained tokens."""

    @classmethod
    def of(cls, episodes: Sequence[Episode]) -> BatchMetrics:
        """Of one rank's episodes."""
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
        )

    @classmethod
    def total(cls, parts: Iterable[BatchMetrics]) -> BatchMetrics:
        """Of all ranks together."""
        listed = list(parts)
        return cls(**{f.name: sum(getattr(part, f.name) for part in listed) for f in fields(cls)})

    def means(self) -> dict[str, float]:
        """One number per name. Where environments report success at all, an episode that a limit cut short is no success."""
        found: dict[str, float] = {}
        if self.episodes:
            found |= {
                "failed": self.failed / self.episodes,
                "attempts": self.attempts / self.episodes,
            }
        if self.finished:
            for name in ("turns", "masked_turns", "tool_uses"):
                found[name] = getattr(self, name) / self.finished
            found["return"] = self.returns / self.finished
            if self.judged:
                found["success"] = self.successes / self.finished
        return found


def advantage_sizes(
    episodes: Sequence[Episode], per_turn: Sequence[Sequence[float]]
) -> list[float]:
    """How large the advantage of each trained turn is; `gem/advantage_abs` is their mean over all ranks."""
    return [
        abs(a)
        for episode, numbers in zip(episodes, per_turn)
        for t, a in enumerate(numbers)
        if episode.trained(t)
    ]
