"""Viewer payload: episodes as the JSON lines that the page's script reads.

A line is a pair of a kind and its content: `e` is the summary of an episode for the list, `d` its
details, which the script parses when the episode is opened, `v` the texts of new token ids. The
keys are single letters, so a text search does not match them.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gem_core.errors import ConfigError
from gem_core.records.serialize import OpaqueValue
from gem_core.training.advantage import advantages, check_estimator
from gem_core.training.sequences import discounted_returns
from gem_core.types import Episode, FinishReason, Turn
from gem_eval.evaluation.score import sampled_tokens

__all__ = ["Credit", "Shelf"]

_FINISHES = {
    FinishReason.LENGTH: "cut at the token limit",
    FinishReason.EMPTY: "nothing sampled",
    FinishReason.REFUSED: "refused",
}
_FLAGS = {"format_error": "format error", "tool_error": "tool error"}
"""Names of problems, by the key of `info` that reports them."""


@dataclass(frozen=True, slots=True)
class Credit:
    """Estimator and discount of the returns, and of advantages that the record does not have.

    A batch is what was trained in one update, or all episodes if the record does not name updates.
    """

    estimator: str = "rebn"
    gamma: float = 1.0

    def __post_init__(self) -> None:
        check_estimator(self.estimator)
        if not 0.0 <= self.gamma <= 1.0:
            raise ConfigError(f"gamma must be between 0 and 1; got {self.gamma!r}")


class Shelf:
    """The shown episodes: it converts them to lines and computes their advantages."""

    def __init__(self, credit: Credit, tokenizer: Any = None) -> None:
        self.credit = credit
        self._tokenizer = tokenizer
        self._known: set[int] = set()
        self._episodes: list[Episode] = []
        self._batches: dict[Hashable, list[int]] = {}
        self._groups: dict[Hashable, int] = {}
        self._advantages: dict[int, list[float]] = {}

    def __len__(self) -> int:
        return len(self._episodes)

    def add(self, episode: Episode) -> Iterator[str]:
        """Add an episode and yield its lines."""
        number = len(self._episodes)
        self._episodes.append(_without_texts(episode))
        batch = (_update(episode), _is_evaluation(episode))
        self._batches.setdefault(batch, []).append(number)
        group = self._groups.setdefault((episode.group, *batch), len(self._groups))
        yield _line("e", _summary(episode, number, group))
        if self._tokenizer is not None:
            new = sorted(
                {i for t in episode.turns for i in (*t.added_ids, *t.action_ids)} - self._known
            )
            if new:
                self._known.update(new)
                yield _line(
                    "v",
                    {str(i): self._tokenizer.decode([i], skip_special_tokens=False) for i in new},
                )
        yield _line("d", _detail(episode, self.credit.gamma))

    def advantages(self, number: int) -> list[float]:
        """Return the recomputed advantage per turn of an episode, over its batch."""
        if len(self._advantages) != len(self._episodes):
            for numbers in self._batches.values():
                batch = [self._episodes[n] for n in numbers]
                computed = advantages(batch, self.credit.estimator, gamma=self.credit.gamma)
                self._advantages.update(zip(numbers, computed))
        return self._advantages[number]


def _without_texts(episode: Episode) -> Episode:
    """Drop what advantages do not need. The ids stay: one estimator counts sampled tokens."""
    turns = tuple(
        replace(t, messages=(), action="", reasoning="", added_ids=(), logprobs=None, info={})
        for t in episode.turns
    )
    return replace(episode, turns=turns, final_observation="", final_info={}, failure=None)


def _update(episode: Episode) -> int | None:
    update = episode.final_info.get("update")
    return update if type(update) is int else None


def _is_evaluation(episode: Episode) -> bool:
    return episode.final_info.get("evaluation") is True


def _as_trained(episode: Episode) -> list[float | None] | None:
    """Return the advantages that the trainer recorded, one per turn; None without them."""
    recorded = episode.final_info.get("advantages")
    if not isinstance(recorded, (list, tuple)) or len(recorded) != len(episode.turns):
        return None
    return [round(a, 6) if type(a) in (int, float) and a - a == 0.0 else None for a in recorded]


def _problems(episode: Episode) -> list[str]:
    """Return the kinds of problems that occurred in the turns of an episode."""
    kinds = {_FINISHES[t.finish] for t in episode.turns if t.finish in _FINISHES}
    kinds |= {name for t in episode.turns for key, name in _FLAGS.items() if t.info.get(key)}
    return sorted(kinds)


def _summary(episode: Episode, number: int, group: int) -> dict[str, Any]:
    tokens = [sampled_tokens(t) for t in episode.turns]
    errors = sum(
        bool(t.info.get("format_error")) + bool(t.info.get("tool_error")) for t in episode.turns
    )
    failure = episode.failure
    return {
        "n": number,
        "e": episode.env_id,
        "c": episode.component,
        "i": episode.seed,
        "r": episode.total_reward,
        "o": episode.success,
        "s": episode.stop.value,
        "x": episode.failed,
        "t": len(episode.turns),
        "k": None if None in tokens or not tokens else sum(filter(None, tokens)),
        "u": sum(bool(t.info.get("use_tool")) for t in episode.turns),
        "w": errors + (failure is not None) + episode.attempts - 1,
        "g": group,
        "d": _update(episode),
        "y": _is_evaluation(episode),
        "f": None if failure is None else f"{failure.kind} in {failure.where}",
        "p": _problems(episode),
    }


def _detail(episode: Episode, gamma: float) -> dict[str, Any]:
    returns: Sequence[float | None] = [None] * len(episode.turns)
    if not episode.failed:
        returns = discounted_returns(episode.rewards, gamma)
    return {
        "t": [_turn(turn, g) for turn, g in zip(episode.turns, returns)],
        "c": _as_trained(episode),
        "z": episode.final_observation,
        "q": _plain(episode.final_info),
        "p": _plain(episode.options),
        "w": _wrappers(episode.wrappers),
        "h": episode.attempts,
        "y": round(episode.seconds, 3),
        "f": None if episode.failure is None else asdict(episode.failure),
    }


def _wrappers(stack: str) -> str:
    """Write a wrapper stack (`canonical_wrappers`) in command-line syntax."""
    try:
        items = json.loads(stack or "[]")
    except (ValueError, RecursionError):  # a record may contain any text
        return stack
    return ", ".join(map(_call, items)) if isinstance(items, list) else stack


def _call(item: Any) -> str:
    match item:
        case [str(name), dict(arguments)]:
            values = ", ".join(f"{k}={v!r}" for k, v in arguments.items())
            return f"{name}({values})" if arguments else name
    return str(item)


def _turn(turn: Turn, discounted: float | None) -> dict[str, Any]:
    return {
        "m": [[m.role, m.content] for m in turn.messages],
        "a": turn.action,
        "h": turn.reasoning,
        "r": turn.reward,
        "g": discounted,
        "s": turn.status.value,
        "f": turn.finish.value,
        "k": sampled_tokens(turn),
        "b": turn.restarted,
        "d": list(turn.added_ids),
        "i": list(turn.action_ids),
        "l": None if turn.logprobs is None else [round(p, 4) for p in turn.logprobs],
        "q": _plain(turn.info),
        "v": turn.versions,
    }


def _line(kind: str, content: Any) -> str:
    text = json.dumps([kind, content], ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # byte-level tokenizers may decode to half a surrogate pair
    return text.encode("utf-8", "replace").decode()


def _plain(value: Any) -> Any:
    """Convert to JSON data for display; values that JSON lacks become text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if value - value == 0.0 else repr(value)
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return f"<{value.type}> {value.text}" if isinstance(value, OpaqueValue) else repr(value)
