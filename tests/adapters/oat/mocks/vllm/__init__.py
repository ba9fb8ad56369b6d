"""Mock of vLLM 0.8.4, which needs x86_64 and a GPU: a transformers model with its API. Tests only.

Sampling, logprobs and weights are real. Weights arrive as in vLLM's workers: oat's own process
group broadcasts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import oat_on_cpu  # noqa: F401 - the import installs the mocks
import torch
from oat.utils.distributed import init_process_group, torch_type_codec
from transformers import AutoModelForCausalLM, AutoTokenizer

from gem_core.policies.transformers_policy import TransformersPolicy
from gem_core.types import FinishReason, Sampling
from gem_oat.worker import newer_torch

__version__ = "0.8.4"


@dataclass
class SamplingParams:
    """The sampling parameters that oat and gem use."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 16
    logprobs: int | None = None
    stop_token_ids: Sequence[int] = ()
    detokenize: bool = True


@dataclass
class Logprob:
    """The logprob of one token at one position."""

    logprob: float


@dataclass
class CompletionOutput:
    """One completion."""

    text: str
    token_ids: Sequence[int]
    logprobs: list[dict[int, Logprob]]
    finish_reason: str


@dataclass
class RequestOutput:
    """The completions of one prompt."""

    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]


class LLM:
    """One model on the CPU."""

    def __init__(
        self, model: str, dtype: str, seed: int, worker_extension_cls: str, **more: Any
    ) -> None:
        self.worker_extension_cls, self.more = worker_extension_cls, more
        torch.set_num_threads(1)
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.model = AutoModelForCausalLM.from_pretrained(
            model, torch_dtype=getattr(torch, dtype), attn_implementation="eager"
        )
        self.policy = TransformersPolicy(self.model, self.tokenizer, seed=seed)

    def get_tokenizer(self) -> Any:
        """Return the tokenizer of the model."""
        return self.tokenizer

    def generate(
        self, prompts: list[dict[str, list[int]]], sampling_params: SamplingParams, **_: Any
    ) -> list[RequestOutput]:
        """Return one completion per prompt. Its ids include the stop token, as in vLLM."""
        p = sampling_params
        self.policy.stop_ids |= frozenset(p.stop_token_ids)
        sampling = Sampling(p.temperature, p.top_p, max(p.top_k, 0), p.max_tokens)
        ids_of_prompts = [prompt["prompt_token_ids"] for prompt in prompts]
        outputs = []
        for prompt, generation in zip(
            ids_of_prompts, self.policy.generate_batch(ids_of_prompts, sampling)
        ):
            ids = generation.ids
            logprobs = [{id: Logprob(p)} for id, p in zip(ids, generation.logprobs or ())]
            text = self.tokenizer.decode(ids, skip_special_tokens=True)
            reason = "length" if generation.finish is FinishReason.LENGTH else "stop"
            completion = CompletionOutput(text, ids, logprobs, reason)
            outputs.append(RequestOutput(list(prompt), [completion]))
        return outputs

    def collective_rpc(self, name: str, args: Any) -> list[Any]:
        """Call a method of the one worker."""
        return [getattr(self, f"_{name}")(*args)]

    def _init_process_group(
        self, address: str, port: int, rank: int, world_size: int, group: str, backend: str
    ) -> None:
        with newer_torch():
            self.group = init_process_group(
                backend=backend,
                init_method=f"tcp://{address}:{port}",
                world_size=world_size,
                rank=rank,
                group_name=group,
            )

    def _update_weight(
        self, name: str, dtype: str, shape: Any, cuda_ipc_handles: Any, empty_cache: bool
    ) -> None:
        weight = torch.empty(shape, dtype=torch_type_codec(dtype))
        torch.distributed.broadcast(weight, 0, group=self.group)
        self.model.get_parameter(name).data.copy_(weight)
