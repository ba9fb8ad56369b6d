"""Policy: an object that chooses actions. Its method determines its kind:

- `Policy.generate(prompt_ids, sampling)` samples token ids, which trainers need;
- `ChatPolicy.chat(messages, sampling)` answers in text, like a server without token ids; its
  episodes are not trainable;
- `Player.act(env, observation)` sees the environment: a person, a baseline player.

Each trainer's engine is one small `Policy`. `batching.BatchPolicy` turns a blocking function over
many prompts into one.
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from gem_core.env.base import Env
from gem_core.types import Generation, Message, Sampling

__all__ = ["ChatPolicy", "Player", "Policy", "ToolCallingPolicy", "warn_if_cut"]


@runtime_checkable
class Policy(Protocol):
    """Samples the ids of one turn."""

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Return the sampled ids, stop token included, and their logprobs when sampled."""
        ...


@runtime_checkable
class ChatPolicy(Protocol):
    """Answers a conversation in text."""

    async def chat(self, messages: Sequence[Message], sampling: Sampling) -> Generation:
        """Return a generation with `text` and without ids."""
        ...


@runtime_checkable
class ToolCallingPolicy(ChatPolicy, Protocol):
    """A chat policy for servers with function calling."""

    async def chat_with_tools(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[Mapping[str, Any]]
    ) -> Generation:
        """Return a generation whose text has the calls; `tools` are JSON schemas."""
        ...


@runtime_checkable
class Player(Protocol):
    """Chooses actions with access to the environment object."""

    def act(self, env: Env, observation: str) -> str | Awaitable[str]:
        """Return the next action."""
        ...


def warn_if_cut(sampling: Sampling) -> None:
    """Warn if top_p or top_k cut the distribution: trainers recompute logprobs of the full one."""
    if sampling.top_p < 1.0 or sampling.top_k > 0:
        warnings.warn(
            f"top_p={sampling.top_p} and top_k={sampling.top_k} cut the sampling distribution, "
            "which biases importance ratios against the trainer's full distribution; "
            "use top_p=1.0 and top_k=0 for training",
            stacklevel=3,
        )
