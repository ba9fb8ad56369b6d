"""Server: a mock of verl's inference server, a Ray actor that generates with transformers."""

from __future__ import annotations

import os
from typing import Any

import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator

from gem_core.policies.tiny import load_folder
from gem_core.policies.transformers_policy import TransformersPolicy
from gem_core.types import FinishReason, Sampling


class TransformersServer:
    """Server that generates with the weights of the last update."""

    def __init__(self, path: str, seed: int) -> None:
        torch.set_num_threads(1)
        self.model, tokenizer = load_folder(path, "the model")
        self.policy = TransformersPolicy(self.model, tokenizer, seed=seed)

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        """Generate one turn; verl's client calls it."""
        sampling = Sampling(
            temperature=float(sampling_params["temperature"]),
            top_p=float(sampling_params["top_p"]),
            top_k=max(int(sampling_params["top_k"]), 0),
            max_tokens=int(sampling_params["max_tokens"]),
        )
        generation = await self.policy.generate(prompt_ids, sampling)
        logprobs = list(generation.logprobs or ()) if sampling_params.get("logprobs") else None
        return TokenOutput(
            token_ids=list(generation.ids),
            log_probs=logprobs,
            stop_reason="length" if generation.finish is FinishReason.LENGTH else "completed",
            extra_fields={"global_steps": self.policy.weight_version},
        )

    async def update_weights(
        self, state: dict[str, torch.Tensor], global_steps: int | None
    ) -> None:
        """Copy the trainer's weights."""
        own = self.model.state_dict()
        with torch.no_grad():
            for name, value in state.items():
                own[name].copy_(value)
        if global_steps is not None:
            self.policy.weight_version = global_steps

    async def set_global_steps(self, global_steps: int) -> None:
        self.policy.weight_version = global_steps

    async def wake_up(self, *_: Any, **__: Any) -> None: ...

    async def sleep(self, *_: Any, **__: Any) -> None: ...

    async def clear_kv_cache(self) -> None: ...

    async def release_kv_cache(self) -> None: ...

    async def resume_kv_cache(self) -> None: ...

    async def abort_all_requests(self, *_: Any, **__: Any) -> None: ...

    async def resume_generation(self) -> None: ...

    async def start_profile(self, **_: Any) -> None: ...

    async def stop_profile(self) -> None: ...


def _actor_name(replica: int) -> str:
    return f"verl_on_cpu_server_{replica}"


class TransformersReplica(RolloutReplica):
    """Replica that starts the server for verl."""

    async def launch_servers(self) -> None:
        self._server_address = _actor_name(self.replica_rank)
        actor = ray.remote(num_cpus=0.1)(TransformersServer)
        self._server_handle = actor.options(
            name=self._server_address, max_concurrency=self.max_concurrency
        ).remote(self.model_config.path, int(self.config.seed) + self.replica_rank)
        self.servers = [self._server_handle]


class TransformersAdapter(BaseRollout):
    """Rollout with which verl's training worker sends its weights to the server."""

    def __init__(
        self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1
    ) -> None:
        super().__init__(config, model_config, device_mesh)
        self.rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(
        self, weights: Any, wire_format: str = "named_tensors", **kwargs: Any
    ) -> None:
        # every rank must consume the whole iterator
        state = {
            name: tensor.detach().cpu().clone()
            async for name, tensor in ensure_async_iterator(weights)
        }
        server = ray.get_actor(_actor_name(self.rank))
        await server.update_weights.remote(state, kwargs.get("global_steps"))
