"""Rollout: a SkyRL generator that plays episodes on SkyRL's own inference engines."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

from skyrl.backends.skyrl_train.inference_servers.utils import resolve_policy_model_name
from skyrl.train.generators.base import GeneratorInterface
from transformers import AutoConfig

from gem_core.adapter_kit.engine import generation_of
from gem_core.adapter_kit.record_log import RecordLog
from gem_core.adapter_kit.settings import model_context, warn_if_tied
from gem_core.adapter_kit.trainer_rollout import TrainerRollout
from gem_core.adapter_kit.update_log import UpdateLog
from gem_core.errors import PolicyError
from gem_core.types import Episode, Generation, Sampling, Task
from gem_skyrl.config import GemConfig
from gem_skyrl.convert import to_batch

__all__ = ["EnginePolicy", "GemGenerator", "play"]


class EnginePolicy:
    """SkyRL's client as a policy, for one episode: its router keeps a session on one engine."""

    def __init__(self, generator: GemGenerator, params: dict[str, Any]) -> None:
        self.generator, self.session = generator, uuid4().hex
        stop = {generator.renderer.turn_end, *(params.get("stop_token_ids") or ())} - {None}
        self.params = {**params, "stop_token_ids": sorted(stop)}
        self.salt = f"{generator.model}@{generator.client.weight_version}"

    async def generate(self, prompt_ids: Any, sampling: Sampling) -> Generation:
        generator, client = self.generator, self.generator.client
        before, first = generator.updates_before or 0, client.weight_version
        request = {
            "prompt_token_ids": [list(prompt_ids)],
            "sampling_params": {**self.params, "max_tokens": sampling.max_tokens},
            "session_ids": [self.session],
            # the salt prevents the reuse of a prefix cached with older weights
            "cache_salt": self.salt if generator.settings.use_cache_salt else None,
        }
        output = await client.generate(request, generator.model)
        (reason,) = output["stop_reasons"]
        if reason == "abort":
            raise PolicyError("SkyRL's engine aborted the generation")
        return generation_of(
            output["response_ids"][0],
            (output["response_logprobs"] or [()])[0],
            cut=reason == "length",
            turn_end=generator.renderer.turn_end,
            versions=(before + first, before + client.weight_version),
        )


class GemGenerator(GeneratorInterface):
    """SkyRL generator of one `GemConfig`; keeps environments and records open."""

    def __init__(self, config: GemConfig, settings: Any, client: Any, tokenizer: Any) -> None:
        """`settings`: a `SkyRLTrainConfig`. `client`: SkyRL's client of its inference engines."""
        self.config, self.settings, self.client = config, settings.generator, client
        self.model = resolve_policy_model_name(settings)
        self.renderer = config.renderer(tokenizer)
        self.rollout = TrainerRollout(config, renderer=self.renderer)
        self.records, self.update_log = RecordLog(config.record), UpdateLog.of(config)
        policy = settings.trainer.policy.model
        model = AutoConfig.from_pretrained(policy.path, trust_remote_code=True)
        if settings.trainer.strategy == "fsdp" and not policy.lora.rank:
            warn_if_tied(model, "SkyRL's FSDP worker")
        longest = self.settings.max_input_length + self.settings.sampling_params.max_generate_length
        served = self.settings.inference_engine.engine_init_kwargs.get("max_model_len")
        caps = (longest, served, model_context(model), config.max_context)
        self.max_context: int = min(filter(None, caps))
        self.updates_before: int | None = None  # finished before the client's first sync
        self.returns_errors: bool = settings.trainer.fully_async.enabled

    async def generate(self, input_batch: Any) -> Any:
        """Play one episode per prompt of a `GeneratorInput`; return a `GeneratorOutput`."""
        metadata = input_batch["batch_metadata"]
        evaluates = metadata.training_phase == "eval"
        step = int(metadata.global_step) - (not evaluates)  # the number of finished updates
        try:
            return await self._generate(input_batch, evaluates, step)
        except Exception as error:
            if evaluates or not self.returns_errors:
                raise
            return error  # SkyRL's async workers would kill the process; gem's trainer raises it

    async def _generate(self, input_batch: Any, evaluates: bool, step: int) -> dict[str, Any]:
        if self.updates_before is None:  # a resumed client also counts its syncs from 1
            self.updates_before = step - self.client.weight_version
        params, extras = input_batch["sampling_params"], input_batch["env_extras"]
        tasks = [self.config.task_of(own, index) for index, own in enumerate(extras)]
        episodes = await asyncio.gather(*(play(self, params, task, step) for task in tasks))
        (self.records.evaluated if evaluates else self.records.played)(episodes)
        return to_batch(episodes, input_batch["trajectory_ids"], self)

    def close(self) -> None:
        self.records.close()
        self.rollout.close()


async def play(generator: GemGenerator, params: dict[str, Any], task: Task, step: int) -> Episode:
    """Play one episode, in a session of its own."""
    config, rollout, cap = generator.config, generator.rollout, params["max_tokens"]
    policy = EnginePolicy(generator, params)
    sampling = Sampling(max_tokens=min(cap, config.max_turn_tokens or cap))
    limits = config.limits(step, max_context=generator.max_context)
    try:
        return await rollout.episode(task, policy=policy, sampling=sampling, limits=limits)
    finally:
        await generator.client.finish_session(policy.session)
