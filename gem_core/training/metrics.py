"""Batch metrics: sums over a batch of episodes that can be added across ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from gem_core.types import Episode

__all__ = ["BatchMetrics", "advantage_sizes"]


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

    @classmethod
    def of(cls, episodes: Sequence[Episode]) -> BatchMetrics:
        """Compute the metrics of one rank's episodes."""
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
        """Add the metrics of all ranks."""
        listed = list(parts)
        return cls(**{f.name: sum(getattr(part, f.name) for part in listed) for f in fields(cls)})

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
        return means


def advantage_sizes(
    episodes: Sequence[Episode], per_turn: Sequence[Sequence[float]]
) -> list[float]:
    """Return |advantage| of each trained turn; the metric `gem/advantage_abs` is their mean."""
    return [
        abs(a)
        for episode, numbers in zip(episodes, per_turn)
        for t, a in enumerate(numbers)
        if episode.trained(t)
    ]
