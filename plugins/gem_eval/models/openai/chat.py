"""Chat policy: sends messages to `/v1/chat/completions` of any server and receives text."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from gem_core.types import Generation, Message, Sampling
from gem_eval.models.openai.answer import Answer, read_answer
from gem_eval.models.openai.function_calls import chat_messages
from gem_eval.models.openai.server import Server, ServerPolicy

__all__ = ["OpenAIChatPolicy"]

_KEPT = 10_000
"""Answers whose thinking is kept: more than the turns of all concurrent episodes."""


class OpenAIChatPolicy(ServerPolicy):
    """Chat with an OpenAI-compatible server in text: for evaluation, not for training."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        api_key_env: str | None = None,
        timeout: float = 120.0,
        retries: int = 5,
        max_connections: int = 64,
        max_tokens_field: str = "max_tokens",
        return_reasoning: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """The arguments are those of `OpenAIPolicy`.

        `max_tokens_field`: some newer models want `max_completion_tokens`. `return_reasoning`:
        send the thinking of answers with function calls back with the calls. Some servers require
        it, others reject it.
        """
        self._server = Server(
            base_url, model, api_key, api_key_env, timeout, retries, max_connections, extra
        )
        self.max_tokens_field = max_tokens_field
        self.return_reasoning = return_reasoning
        self._reasoning: dict[str, dict[str, str]] = {}
        """The reasoning field of recent answers with calls; ids of calls make the texts unique."""
        self._ignored: set[str] = set()

    async def chat(self, messages: Sequence[Message], sampling: Sampling) -> Generation:
        """Return the text of the answer.

        Requests omit settings with default values, because many servers reject unknown fields.
        """
        converted = chat_messages(messages, function_calling=False)
        return _generation(await self._ask(converted, sampling))

    async def chat_with_tools(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[Mapping[str, Any]]
    ) -> Generation:
        """Return the text and the function calls of the answer, the calls as text."""
        converted = chat_messages(messages, function_calling=True, reasoning=self._reasoning)
        answer = await self._ask(converted, sampling, tools=list(tools))
        if self.return_reasoning and answer.reasoning_field:
            self._reasoning[answer.text] = {answer.reasoning_field: answer.reasoning}
            if len(self._reasoning) > _KEPT:
                del self._reasoning[next(iter(self._reasoning))]
        return _generation(answer)

    async def _ask(
        self, messages: list[dict[str, Any]], sampling: Sampling, **fields: Any
    ) -> Answer:
        body: dict[str, Any] = {
            "messages": messages,
            "temperature": sampling.temperature,
            self.max_tokens_field: sampling.max_tokens,
            **fields,
        }
        if sampling.top_p != 1.0:
            body["top_p"] = sampling.top_p
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        answer = read_answer(await self._server.post("chat/completions", body), self._server.url)
        self._warn_once(answer.ignored)
        return answer

    def _warn_once(self, ignored: Sequence[str]) -> None:
        new = [name for name in ignored if name not in self._ignored]
        if new:
            self._ignored.update(new)
            warnings.warn(
                f"the answers of {self._server.url} contain {', '.join(new)}, which gem ignores: "
                "the model may have said something there that the environment does not see",
                stacklevel=2,
            )


def _generation(answer: Answer) -> Generation:
    return Generation(
        (), None, answer.finish, answer.text, tokens=answer.tokens, reasoning=answer.reasoning
    )
