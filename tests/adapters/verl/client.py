"""Client: a stub of verl's inference client that runs the tiny model in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from verl.workers.rollout.replica import TokenOutput

from gem_core.policies.tiny import load_tiny
from gem_core.policies.transformers_policy import TransformersPolicy
from gem_core.types import Sampling
from gem_verl.dataset import row_of

__all__ = ["Client", "columns_of"]


class Client:
    """Client that generates with the tiny model. `change` maps its output to another."""

    def __init__(
        self, change: Callable[[TokenOutput], TokenOutput] = lambda output: output
    ) -> None:
        model, tokenizer = load_tiny()
        self.policy = TransformersPolicy(model, tokenizer, seed=0)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.change = change

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        self.calls.append((request_id, sampling_params))
        generation = await self.policy.generate(
            prompt_ids, Sampling(max_tokens=sampling_params["max_tokens"])
        )
        steps = {
            "min_global_steps": 3 + len(self.calls) % 2,
            "max_global_steps": 4 + len(self.calls) % 2,
        }
        logprobs = list(generation.logprobs or ())
        return self.change(
            TokenOutput(token_ids=list(generation.ids), log_probs=logprobs, extra_fields=steps)
        )


def columns_of(env_id: str, seeds: Sequence[int]) -> dict[str, list[Any]]:
    """Return the columns of a batch with one prompt per seed."""
    rows = [row_of(env_id, seed, i) for i, seed in enumerate(seeds)]
    columns = {name: [row[name] for row in rows] for name in ("raw_prompt", "extra_info", "index")}
    return {**columns, "uid": [str(i) for i in range(len(seeds))]}
