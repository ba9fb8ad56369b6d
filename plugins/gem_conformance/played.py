"""Played cases: the adapter's own rollout on a scripted engine and a scripted environment.

Golden cases test what happens to an episode after it was played. These test the play itself: the
engine wrapper, seeds, finish reasons, limits and order. The scripted engine derives its answer from
the prompt ids, so a swapped row, a shifted logprob or a changed prompt shows in the episode.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gem_conformance.golden import END
from gem_core.env.base import Env, ResetResult, StepResult
from gem_core.env.registry import environments, register
from gem_core.types import Episode, FinishReason, Generation, StopReason, TurnStatus

__all__ = [
    "ENV_ID",
    "PLAYED_CASES",
    "PlayedCase",
    "answer",
    "differences",
    "engine_reason",
    "scripted_env",
]

ENV_ID = "conformance:Script-v0"
_LETTERS = range(36, 62)
"""The ids of the letters A to Z in the tiny tokenizer."""
_TEMPLATE_TOKENS = 24
"""At least what a chat template adds around an observation."""
FAILING, SLOW = 6, 4
"""The environment fails if seed % 7 is the first, and is slow if it is the second."""


@dataclass(frozen=True)
class PlayedCase:
    """A batch to play: its seeds in order, and fields of the `GemConfig`."""

    name: str
    seeds: tuple[int, ...]
    fields: Mapping[str, Any] = field(default_factory=dict)
    update: int = 0
    """The number of finished updates, as after resuming from a checkpoint."""
    turns: int | None = None
    """The turn limit that follows from `fields` and `update`."""

    @property
    def config(self) -> dict[str, Any]:
        """All fields of the `GemConfig`."""
        return {"env_id": ENV_ID, "seeds": sorted(set(self.seeds)), **self.fields}


SEEDS = (5, 3, 9, 1, 12, 7, 3, 2)
PLAYED_CASES = (
    PlayedCase("seeds and answers in order", SEEDS, {"max_turn_tokens": 16}),
    PlayedCase("turns cut by their token cap", SEEDS, {"max_turn_tokens": 4}),
    PlayedCase("cut turns masked", SEEDS, {"max_turn_tokens": 4, "on_cut": "mask"}),
    PlayedCase("context limit", SEEDS, {"max_turn_tokens": 16, "max_context": 96}),
    PlayedCase("a failing environment", (5, 6, 13, 1), {"max_turn_tokens": 16}),
    PlayedCase("slow episodes", (4, 5, 11, 1, 18, 3), {"max_turn_tokens": 16}),
    PlayedCase("a fixed horizon", SEEDS, {"max_turn_tokens": 16, "horizon": 2}, turns=2),
    PlayedCase(
        "a horizon after resuming",
        SEEDS,
        {"max_turn_tokens": 16, "horizon": "1,3@4"},
        update=5,
        turns=3,
    ),
)


def answer(prompt_ids: Sequence[int], max_tokens: int, end_id: int = END) -> Generation:
    """Return the scripted engine's generation: 1 to 8 letters and the end token, if they fit."""
    digest = hashlib.sha256(repr(list(prompt_ids)).encode()).digest()
    letters = [_LETTERS[byte % len(_LETTERS)] for byte in digest[1 : 2 + digest[0] % 8]]
    ids = (*letters, end_id)[:max_tokens]
    logprobs = tuple(-(byte + 1) / 64 for byte in digest[16 : 16 + len(ids)])
    return Generation(
        ids, logprobs, FinishReason.STOP if ids[-1] == end_id else FinishReason.LENGTH
    )


def engine_reason(generation: Generation, max_tokens: int) -> str:
    """Return the finish reason of an engine that checks the token cap before the end token.

    SGLang and older versions of vLLM do, so a turn may be complete although they say `length`.
    """
    return "length" if len(generation.ids) >= max_tokens else "stop"


class ScriptedEnv(Env):
    """An environment whose length, rewards, failures and delays follow from its seed."""

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        """Show the seed."""
        return f"Seed {self._seed}.", {}

    def on_step(self, action: str) -> StepResult:
        """Pay a reward that depends on the seed, the turn and the action."""
        if self._seed % 7 == FAILING and self.turn == 1:
            raise RuntimeError("the script fails here")
        if self._seed % 7 == SLOW:
            time.sleep(0.2)
        ended = self.turn + 1 == _length(self._seed)
        reward = _reward(self._seed, self.turn, action)
        return f"Turn {self.turn} of {self._seed}.", reward, ended, False, {}


@contextmanager
def scripted_env() -> Iterator[None]:
    """Register the scripted environment inside the block."""
    register(ENV_ID, ScriptedEnv, replace=True)
    try:
        yield
    finally:
        environments.remove(ENV_ID)


def differences(
    case: PlayedCase, episodes: Sequence[Episode], max_context: int, end_id: int = END
) -> list[str]:
    """Return what the episodes do not have in common with the script; empty if all is right."""
    found = []
    if [e.seed for e in episodes] != list(case.seeds):
        found.append(f"the seeds are {[e.seed for e in episodes]}, not {list(case.seeds)}")
    for episode in episodes:
        found += [
            f"seed {episode.seed}: {text}"
            for text in _of_episode(case, episode, max_context, end_id)
        ]
    return found


def _of_episode(case: PlayedCase, episode: Episode, max_context: int, end_id: int) -> Iterator[str]:
    context = min(case.fields.get("max_context", max_context), max_context)
    cap = case.fields["max_turn_tokens"]
    for number, turn in enumerate(episode.turns):
        prompt = episode.prompt_ids(number)
        where = f"turn {number}"
        if len(prompt) >= context:
            yield f"{where} has a prompt of {len(prompt)} tokens, but the limit is {context}"
            continue
        want = answer(prompt, min(cap, context - len(prompt)), end_id)
        if turn.action_ids != want.ids:
            yield f"{where} has the ids {turn.action_ids}, but the engine gave {want.ids}"
        if turn.logprobs != want.logprobs:
            yield f"{where} has the logprobs {turn.logprobs}, but the engine gave {want.logprobs}"
        if turn.finish is not want.finish:
            yield f"{where} finished by {turn.finish.value}, the engine by {want.finish.value}"
        masked = case.fields.get("on_cut") == "mask" and want.finish is FinishReason.LENGTH
        failed = episode.failed and number == len(episode.turns) - 1
        status = TurnStatus.MASKED if masked else TurnStatus.VALID
        status = TurnStatus.FAILED if failed else status
        if turn.status is not status:
            yield f"{where} is {turn.status.value}, not {status.value}"
        reward = _reward(episode.seed, number, turn.action)
        if not failed and turn.reward != reward:
            yield f"{where} has the reward {turn.reward}, but the environment gave {reward}"
    yield from _of_end(case, episode, context)


def _of_end(case: PlayedCase, episode: Episode, context: int) -> Iterator[str]:
    turns, length = len(episode.turns), _length(episode.seed)
    if episode.seed % 7 == FAILING:
        expected, stop = 2, StopReason.ENV_ERROR
    elif case.turns is not None and case.turns < length:
        expected, stop = case.turns, StopReason.TURN_LIMIT
    elif episode.stop is StopReason.CONTEXT_FULL:  # the last observation must leave no room
        expected, stop = turns, episode.stop
        if turns == length or _used(episode) + _TEMPLATE_TOKENS < context:
            yield f"stopped by context_full after {_used(episode)} of {context} tokens"
    else:
        expected, stop = length, StopReason.TERMINATED
    if (turns, episode.stop) != (expected, stop):
        yield (
            f"ended after {turns} turns by {episode.stop.value}, "
            f"not after {expected} by {stop.value}"
        )


def _used(episode: Episode) -> int:
    """Return the number of tokens up to the observation after the last action, about."""
    last = len(episode.turns) - 1
    ids = len(episode.prompt_ids(last)) + len(episode.turns[last].action_ids)
    return ids + len(episode.final_observation)


def _length(seed: int) -> int:
    return 2 + seed % 3 if seed % 7 in (FAILING, SLOW) else 1 + seed % 4


def _reward(seed: int, turn: int, action: str) -> float:
    return (seed * 7 + turn * 3) % 5 / 4 + sum(action.encode()) % 16 / 64
