"""Export: recorded episodes as SFT and DPO datasets in TRL's conversational format.

| dataset | row                                                                              |
|---------|----------------------------------------------------------------------------------|
| SFT     | `prompt` (messages) and `completion` (one assistant message), one row per turn    |
| SFT     | `messages`, one row per episode (`per="episode"`)                                 |
| DPO     | `prompt`, `chosen` and `rejected`: two episodes of one task up to the turn where |
|         | they first differ, and the two different actions                                  |

A row also has `env_id`, `seed` and `return`. In rows per turn and in DPO rows only the model's own
messages are targets. For rows per episode, set TRL's `assistant_only_loss=True`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from gem_core.errors import ConfigError
from gem_core.types import Episode, Message

__all__ = ["Per", "Row", "dpo_rows", "sft_rows"]

Row = dict[str, Any]
Per = Literal["turn", "episode"]


def sft_rows(
    episodes: Iterable[Episode], *, min_return: float | None = None, per: Per = "turn"
) -> Iterator[Row]:
    """Yield the rows of the good episodes.

    An episode is good if its return is at least `min_return`; by default, if it is a success.
    """
    if per not in ("turn", "episode"):
        raise ConfigError(f"per must be 'turn' or 'episode'; got {per!r}")
    for episode in episodes:
        if not _is_good(episode, min_return):
            continue
        if per == "turn":
            for number, prompt in enumerate(_prompts(episode)):
                if episode.trained(number):
                    completion = [_assistant(episode, number)]
                    yield {"prompt": prompt, "completion": completion, **_facts(episode)}
        else:
            if any(turn.restarted for turn in episode.turns[1:]):
                raise ConfigError(
                    f"{episode!r} rewrites its history, so it is not a single conversation; "
                    "export it per turn"
                )
            *_, last = _prompts(episode)
            messages = [*last, _assistant(episode, len(episode.turns) - 1)]
            yield {"messages": messages, **_facts(episode)}


def dpo_rows(episodes: Iterable[Episode], *, margin: float = 0.0) -> Iterator[Row]:
    """Yield one row for the best episode of each task and each worse one.

    The returns must differ by more than `margin`. Pairs whose observations differ before their
    actions do (a random environment) have no common prompt and yield nothing.
    """
    if margin < 0:
        raise ConfigError(f"margin must be at least 0; got {margin!r}")
    groups: dict[Any, list[Episode]] = defaultdict(list)
    for episode in episodes:
        if not episode.failed and episode.turns:
            groups[episode.group].append(episode)
    for group in groups.values():
        best = max(group, key=_return)
        for worse in group:
            if _return(best) - _return(worse) > margin:
                row = _pair(best, worse)
                if row is not None:
                    yield row


def _pair(best: Episode, worse: Episode) -> Row | None:
    pairs = zip(_prompts(best), _prompts(worse), strict=False)
    for number, (prompt, other) in enumerate(pairs):
        if prompt != other:
            return None
        chosen, rejected = _assistant(best, number), _assistant(worse, number)
        if chosen != rejected:
            if not (best.trained(number) and worse.trained(number)):
                return None
            facts = {**_facts(best), "rejected_return": _return(worse)}
            return {"prompt": prompt, "chosen": [chosen], "rejected": [rejected], **facts}
    return None


def _prompts(episode: Episode) -> Iterator[list[dict[str, str]]]:
    """Yield the conversation before each action."""
    conversation: list[dict[str, str]] = []
    for number, turn in enumerate(episode.turns):
        if turn.restarted:
            conversation = []
        conversation = _with(conversation, turn.messages)
        yield list(conversation)
        conversation = [*conversation, _assistant(episode, number)]


def _with(conversation: list[dict[str, str]], messages: Sequence[Message]) -> list[dict[str, str]]:
    for message in messages:
        if message.role == "continuation":
            raise ConfigError(
                "an observation continues the model's own message, which no chat dataset can "
                "express; play the episodes with an action format that ends the message"
            )
        conversation = [*conversation, message.as_dict()]
    return conversation


def _assistant(episode: Episode, turn: int) -> dict[str, str]:
    return {"role": "assistant", "content": episode.turns[turn].action}


def _is_good(episode: Episode, min_return: float | None) -> bool:
    if episode.failed or not episode.turns:
        return False
    if min_return is None:
        return bool(episode.success)
    return _return(episode) >= min_return


def _return(episode: Episode) -> float:
    return float(episode.total_reward or 0.0)


def _facts(episode: Episode) -> Row:
    return {"env_id": episode.played_id, "seed": episode.seed, "return": _return(episode)}
