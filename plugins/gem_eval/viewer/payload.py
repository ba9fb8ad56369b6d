"""Shown: an episode as the lines of JSON that the page's script reads.

A line is a pair of a kind and its content: `e` what the list shows of an episode, `d` all the rest of it, which the script
leaves unread until the episode is opened, `v` the texts of token ids that were not met before. The names inside are single
letters, so that a search for a word does not find them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gem_core.errors import ConfigError
from gem_core.records.serialize import OpaqueValue
from gem_core.training.advantage import advantages, check_estimator
from gem_core.training.sequences import discounted_returns
from gem_core.types import Episode, Turn
from gem_eval.evaluation.score import sampled_tokens

__all__ = ["Credit", "Shelf"]


@dataclass(frozen=True, slots=True)
class Credit:
    """How the return and the advantage of a turn are computed: over all episodes that are shown."""

    estimator: str = "rebn"
    gamma: float = 1.0

    def __post_init__(self) -> None:
        check_estimator(self.estimator)
        if not 0.0 <= self.gamma <= 1.0:
            raise ConfigError(f"gamma must be between 0 and 1; given: {self.gamma!r}")


class Shelf:
    """The episodes that are shown, as lines, and what their advantages need."""

    def __init__(self, credit: Credit, tokenizer: Any = None) -> None:
        self.credit = credit
        self._tokenizer = tokenizer
        self._known: set[int] = set()
        self._bare: list[Episode] = []
        self._advantages: list[list[float]] = []

    def __len__(self) -> int:
        return len(self._bare)

    def add(self, episode: Episode) -> Iterator[str]:
        """The lines of one more episode."""
        number = len(self._bare)
        self._bare.append(_bare(episode))
        yield _line("e", _summary(episode, number))
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
        """The advantage of each turn of an episode, within the batch of all episodes there are by now."""
        if len(self._advantages) != len(self._bare):
            self._advantages = advantages(
                self._bare, self.credit.estimator, gamma=self.credit.gamma
            )
        return self._advantages[number]


def _bare(episode: Episode) -> Episode:
    """What credit depends on, without the texts. Sampled tokens are counted by one estimator, so the ids stay."""
    turns = tuple(
        replace(t, messages=(), action="", added_ids=(), logprobs=None, info={})
        for t in episode.turns
    )
    return replace(episode, turns=turns, final_observation="", final_info={}, failure=None)


def _summary(episode: Episode, number: int) -> dict[str, Any]:
    tokens = [sampled_tokens(t) for t in episode.turns]
    errors = sum(
        bool(t.info.get("format_error")) + bool(t.info.get("tool_error")) for t in episode.turns
    )
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
        "w": errors + (episode.failure is not None) + episode.attempts - 1,
    }


def _detail(episode: Episode, gamma: float) -> dict[str, Any]:
    returns: Sequence[float | None] = [None] * len(episode.turns)
    if not episode.failed:
        returns = discounted_returns(episode.rewards, gamma)
    return {
        "t": [_turn(turn, g) for turn, g in zip(episode.turns, returns)],
        "z": episode.final_observation,
        "q": _plain(episode.final_info),
        "p": _plain(episode.options),
        "w": _wrappers(episode.wrappers),
        "h": episode.attempts,
        "y": round(episode.seconds, 3),
        "f": None if episode.failure is None else asdict(episode.failure),
    }


def _wrappers(stack: str) -> str:
    """A stack, `canonical_wrappers` of it, as one would write it on a command line."""
    try:
        items = json.loads(stack or "[]")
    except (ValueError, RecursionError):  # any text may stand in a record
        return stack
    return ", ".join(map(_call, items)) if isinstance(items, list) else stack


def _call(item: Any) -> str:
    match item:
        case [str(name), dict(arguments)]:
            return (
                f"{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})"
                if arguments
                else name
            )
    return str(item)


def _turn(turn: Turn, discounted: float | None) -> dict[str, Any]:
    return {
        "m": [[m.role, m.content] for m in turn.messages],
        "a": turn.action,
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
    return text.encode(
        "utf-8", "replace"
    ).decode()  # half a surrogate pair, as byte-level tokenizers may decode to


def _plain(value: Any) -> Any:
    """JSON data for a reader's eye; what JSON lacks is shown as text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if value - value == 0.0 else repr(value)
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return f"<{value.type}> {value.text}" if isinstance(value, OpaqueValue) else repr(value)
