"""Failure taxonomy: one word for how an episode went wrong.

The first outcome that fits counts:

| outcome      | meaning                                                                        |
|--------------|--------------------------------------------------------------------------------|
| `solved`     | the environment reports success                                                |
| `failed`     | the environment or the policy raised an error; the outcome is unknown          |
| `unreadable` | the last completion, or half of them, had no action that could be parsed       |
| `gave up`    | the last completion was empty or refused, or says that it gives up             |
| `tool error` | half of the calls of tools or functions failed                                 |
| `loop`       | one action fills half of at least four turns, or the last three turns          |
| `wrong`      | the episode ended with a wrong answer or a lost game                           |
| `unfinished` | a limit of turns, tokens or context ended the episode                          |
"""

from __future__ import annotations

import re
from collections import Counter

from gem_core.types import Episode, FinishReason, Turn

__all__ = ["OUTCOMES", "outcome"]

OUTCOMES = (
    "solved", "wrong", "loop", "unreadable", "gave up", "tool error", "unfinished", "failed",
)  # fmt: skip
_GIVES_UP = re.compile(r"\b(i give up|i cannot|i can't|i am unable|i'm unable|as an ai)\b", re.I)


def outcome(episode: Episode) -> str:
    """Return the outcome of an episode."""
    if episode.failed:
        return "failed"
    if episode.success:
        return "solved"
    turns = episode.turns
    if _unreadable(turns):
        return "unreadable"
    if not turns or _gives_up(turns[-1]):
        return "gave up"
    calls = [turn for turn in turns if _is_call(turn)]
    if calls and 2 * sum(_is_error(turn) for turn in calls) >= len(calls):
        return "tool error"
    if _loops([_action(turn) for turn in turns]):
        return "loop"
    return "wrong" if episode.terminated else "unfinished"


def _unreadable(turns: tuple[Turn, ...]) -> bool:
    """Whether the last completion, or at least half of them, had no action."""
    errors = [bool(turn.info.get("format_error")) for turn in turns]
    return bool(errors) and (errors[-1] or 2 * sum(errors) >= len(errors))


def _gives_up(turn: Turn) -> bool:
    text = turn.action.strip()
    refused = turn.finish in (FinishReason.EMPTY, FinishReason.REFUSED)
    return refused or not text or _GIVES_UP.search(text) is not None


def _is_call(turn: Turn) -> bool:
    return bool(turn.info.get("use_tool")) or "call_error" in turn.info


def _is_error(turn: Turn) -> bool:
    return bool(turn.info.get("tool_error") or turn.info.get("call_error"))


def _action(turn: Turn) -> str:
    return " ".join(str(turn.info.get("parsed_action", turn.action)).split())


def _loops(actions: list[str]) -> bool:
    if len(actions) < 3:
        return False
    if len(set(actions[-3:])) == 1:
        return True
    most = Counter(actions).most_common(1)[0][1]
    return len(actions) >= 4 and 2 * most >= len(actions)
