"""vLLM mock: OpenRLHF's vLLM actor as an agent executor sees it, with the tiny model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gem_core import Sampling
from gem_core.policies.tiny import load_tiny

__all__ = ["Engine"]


class Engine:
    """Mock engine that generates with the tiny model and stores the requests."""

    def __init__(self) -> None:
        from gem_core.policies.transformers_policy import TransformersPolicy

        model, self.tokenizer = load_tiny()
        self.policy = TransformersPolicy(model, self.tokenizer, seed=0, where="inline")
        self.requests: list[tuple[int, Any]] = []
        """(length of the prompt, sampling parameters) of each request."""
        self.gem_step = 0

    async def generate(
        self, prompt_token_ids: list[int], sampling_params: Any, multi_modal_data: Any = None
    ) -> Any:
        self.requests.append((len(prompt_token_ids), sampling_params))
        generation = await self.policy.generate(
            prompt_token_ids, Sampling(max_tokens=sampling_params.max_tokens)
        )
        logprobs = [
            {i: SimpleNamespace(logprob=p)}
            for i, p in zip(generation.ids, generation.logprobs or ())
        ]
        output = SimpleNamespace(
            token_ids=list(generation.ids),
            finish_reason=generation.finish.value,
            logprobs=None if sampling_params.logprobs is None else logprobs,
        )
        return SimpleNamespace(outputs=[output])
