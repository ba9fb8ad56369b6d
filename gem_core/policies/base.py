"""Policy: what chooses actions. Three kinds, told apart by the method they have:

- `Policy.generate(prompt_ids, sampling)` samples token ids: what a trainer needs;
- `ChatPolicy.chat(messages, sampling)` answers in text, as a server without token ids does: not trainable;
- `Player.act(env, observation)` looks at the environment itself: a person, a random player, a scripted expert.

Every framework's engine is one small `Policy`. `batching.BatchPolicy` makes one of a blocking function that generates for
many prompts at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Sequence
from typing import Protocol, runtime_checkable

from gem_core.env.base import Env
from gem_core.types import Generation, Message, Sampling

__all__ = ["ChatPolicy", "Player", "Policy", "warn_if_cut"]


@runtime_checkable
class Policy(Protocol):
    """Samples the ids of one turn."""

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """The sampled ids, the sampled stop token included, with the logprobs of the distribution sampled from."""
        ...


@runtime_checkable
class ChatPolicy(Protocol):
    """Answers a conversation in text."""

    async def chat(self, messages: Sequence[Message], sampling: Sampling) -> Generation:
        """A generation with `text`, and without ids."""
        ...


@runtime_checkable
class Player(Protocol):
    """Acts on an environment it can look into."""

    def act(self, env: Env, observation: str) -> str | Awaitable[str]:
        """The next action."""
        ...


def warn_if_cut(sampling: Sampling) -> None:
    """Warns where logprobs would be those of a cut distribution, which no trainer recomputes."""
    if sampling.top_p < 1.0 or sampling.top_k > 0:
        warnings.warn(
            f"sampling with top_p={sampling.top_p} and top_k={sampling.top_k} cuts the distribution: the logprobs are "
            "those of the "
            "cut one, and importance ratios against a trainer's full one are biased. Use top_p=1.0 and top_k=0 for training.",
            stacklevel=3,
        )
