"""Scripted policies: a function or a list of texts instead of a model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from gem_core.env.base import Env
from gem_core.errors import PolicyError
from gem_core.types import FinishReason, Generation, Sampling

__all__ = ["ScriptedPlayer", "ScriptedPolicy"]


class ScriptedPlayer:
    """Plays the actions that a function of environment and observation returns."""

    def __init__(self, play: Callable[[Env, str], str | Awaitable[str]]) -> None:
        self._play = play

    def act(self, env: Env, observation: str) -> str | Awaitable[str]:
        """Call the function."""
        return self._play(env, observation)


class ScriptedPolicy:
    """Returns texts or generations as if a model had sampled them.

    A list is used in order, for one episode at a time. A function of the prompt's text serves any
    number of episodes.
    """

    def __init__(
        self,
        script: Iterable[str | Generation] | Callable[[str], str | Generation],
        tokenizer: Any,
        *,
        logprob: float = -0.5,
    ) -> None:
        self._tokenizer = tokenizer
        self._logprob = logprob
        self._script = script if callable(script) else None
        self._lines = iter(()) if callable(script) else iter(script)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Encode the next line, append the turn-end token, and cut it at the token cap."""
        if self._script is not None:
            line = self._script(self._tokenizer.decode(list(prompt_ids), skip_special_tokens=False))
        else:
            try:
                line = next(self._lines)
            except StopIteration:
                raise PolicyError(
                    "the script has no more lines, but the episode needs another action"
                ) from None
        if isinstance(line, Generation):
            return line
        ids = [*self._tokenizer.encode(line, add_special_tokens=False)]
        if self._tokenizer.eos_token_id is not None:
            ids.append(self._tokenizer.eos_token_id)
        finish = FinishReason.STOP
        if len(ids) > sampling.max_tokens:
            ids, finish = ids[: sampling.max_tokens], FinishReason.LENGTH
        return Generation(tuple(ids), (self._logprob,) * len(ids), finish)
