"""Rollout: plays episodes on verl's own inference servers, inside an agent loop.

verl creates one agent loop per episode and runs all episodes of a worker process on one event loop.
They share environments, step threads, renderer and record files.
"""

from __future__ import annotations

import logging
import pickle
import time
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import torch
from pydantic import Field
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
    register,
)

from gem_core.adapter_kit.batch import as_evaluated, response_start, trained_sequences
from gem_core.adapter_kit.critic import bootstrap_tail
from gem_core.adapter_kit.engine import generation_of
from gem_core.adapter_kit.trainer_rollout import TrainerRollout
from gem_core.errors import ConfigError, PolicyError
from gem_core.records.file import WorkerRecords
from gem_core.rollout.renderer import Renderer
from gem_core.types import Episode, Generation, Sampling, StopReason
from gem_verl.channel import token_rewards
from gem_verl.checks import has_gem_trainer, one_sequence_reason
from gem_verl.config import AGENT, GemConfig, check_settings, read_config
from gem_verl.convert import to_batch

__all__ = ["EnginePolicy", "GemAgentLoop", "GemAgentLoopOutput", "play"]

# verl warns in every episode if it has no Continuous Token builder for the model, such as a Llama;
# gem does not use the builder
logging.getLogger("verl.utils.tokenizer.continuous_token_wiring").setLevel(logging.ERROR)


class GemAgentLoopOutput(AgentLoopOutput):
    """verl's output of an agent loop, with one reward per response token."""

    token_rewards: list[float] = Field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that verl's default trainer (V1) stores of a sequence."""
        fields: dict[str, Any] = super().as_dict()
        fields["rm_scores"] = torch.tensor(fields.pop("token_rewards"), dtype=torch.float32)
        return fields


@dataclass
class _Shared:
    """Objects that the episodes of one config share in a worker process."""

    config: GemConfig
    renderer: Renderer
    rollout: TrainerRollout
    records: WorkerRecords = field(default_factory=WorkerRecords)


_shared: dict[tuple[str, int], _Shared] = {}


@register(AGENT)
class GemAgentLoop(AgentLoopBase):
    """Agent loop that plays any environment.

    Reads its config from `data.gem`; `gem` in the loop's entry of an agent loop file overrides it.
    """

    def __init__(self, trainer_config: Any, *args: Any, gem: Any = None, **kwargs: Any) -> None:
        super().__init__(trainer_config, *args, **kwargs)
        key = (str([self.config.data.get("gem"), self.config.algorithm, gem]), id(self.tokenizer))
        if key not in _shared:
            config = read_config(self.config, gem)
            check_settings(self.config, config)
            _shared[key] = _Shared(config, config.renderer(self.tokenizer), TrainerRollout(config))
        self.shared = _shared[key]

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        """Play the episode of a dataset row and return its sequences; verl calls it."""
        if "global_steps" not in row:
            raise ConfigError(
                "verl's legacy worker passes no global_steps and puts the reward of an episode on "
                "its last token; set trainer.use_v1=True, or for the legacy trainer the "
                "agent_loop_manager_class in gem_verl.legacy"
            )
        # verl counts updates from 1; it evaluates after an update, with the number of this update
        current = not self.shared.config.is_evaluation(row)
        step = max(int(row["global_steps"]) - current, 0)
        if self.rollout_config.name == "vllm":
            sampling_params = {"detokenize": False, **sampling_params}  # gem needs no text
        engine = EnginePolicy(self.server_manager, sampling_params, self.shared.renderer)
        episode = await self.episode(engine, row, step)
        return self.output(episode, engine, step)

    async def episode(self, engine: EnginePolicy, row: dict[str, Any], step: int) -> Episode:
        """Play the episode of a dataset row. gem's trainers record it; verl's own do not."""
        episode = await play(self.shared, engine, row, step, self.rollout_config)
        if self.shared.config.is_evaluation(row):
            episode = as_evaluated(episode)
        if not has_gem_trainer(self.config):
            self.shared.records.write(self.shared.config.record, [episode])
        return episode

    def output(
        self, episode: Episode, engine: EnginePolicy, step: int
    ) -> GemAgentLoopOutput | list[GemAgentLoopOutput]:
        """Convert an episode to verl's output. The first sequence carries the episode itself."""
        end_id, algorithm = self.shared.renderer.turn_end or 0, self.config.algorithm
        tail = self._tail(episode, end_id)
        needs_values = self.shared.config.needs_values
        sequences = to_batch(episode, end_id, tail, values=needs_values)
        reason = one_sequence_reason(self.config, self.shared.config) if len(sequences) > 1 else ""
        if reason:
            raise ConfigError(
                f"the episode of {episode.env_id} with seed {episode.seed} has {len(sequences)} "
                f"sequences; {reason}"
            )
        versions = [turn.versions for turn in episode.turns if turn.versions is not None]
        versions = versions or [(step, step)]
        outputs = []
        for number, (fields, rewards) in enumerate(
            zip(sequences, token_rewards(episode, end_id, algorithm))
        ):
            if not engine.sampling_params.get("logprobs"):
                fields["response_logprobs"] = None
            rewards = rewards + [0.0] * (len(fields["response_ids"]) - len(rewards))
            extra_fields = {
                "min_global_steps": min(first for first, _ in versions),
                "max_global_steps": max(last for _, last in versions),
                "turn_scores": list(episode.rewards),
                "tool_rewards": [],
                # verl averages these over a validation set, and skips None and text
                "reward_extra_info": {
                    "env": episode.played_id,
                    "success": _success(episode),
                    "judged": None if episode.failed else float(episode.success is not None),
                    "return": episode.total_reward,
                    "turns": None if episode.failed else float(len(episode.turns)),
                    "failed": float(episode.failed),
                },
                # bytes, because pydantic would dump an episode as a dict
                "gem": pickle.dumps(episode) if number == 0 else b"",
            }
            outputs.append(
                GemAgentLoopOutput(
                    **fields,
                    token_rewards=rewards,
                    reward_score=episode.total_reward or 0.0,  # verl then calls no reward function
                    num_turns=2 * len(episode.turns),  # verl counts both sides of a conversation
                    metrics=AgentLoopMetrics(
                        generate_sequences=engine.seconds,
                        tool_calls=max(episode.seconds - engine.seconds, 0.0),
                    ),
                    multi_modal_data={},
                    extra_fields=extra_fields,
                )
            )
        return outputs if len(outputs) > 1 else outputs[0]

    def _tail(self, episode: Episode, end_id: int) -> tuple[int, ...]:
        """Return the ids after the last sequence from which a critic's value bootstraps."""
        if not self.shared.config.needs_values:
            return ()
        last = trained_sequences(episode, end_id, values=True)[-1]
        max_context, max_response = _caps(self.rollout_config)
        max_ids = min(max_context, response_start(last) + max_response)
        return bootstrap_tail(episode, last, self.shared.renderer, max_ids)


class EnginePolicy:
    """verl's inference servers as a policy, for one episode.

    All turns have the same request id, so verl sends them to one server.
    """

    def __init__(self, client: Any, sampling_params: dict[str, Any], renderer: Renderer) -> None:
        self.client, self.turn_end = client, renderer.turn_end
        self.sampling_params = dict(sampling_params)
        if renderer.turn_end is not None and renderer.turn_end != renderer.tokenizer.eos_token_id:
            # without it no turn of this chat template would end
            self.sampling_params["stop_token_ids"] = [renderer.turn_end]
        self.request_id = uuid4().hex
        self.seconds = 0.0
        """Total time in generation."""

    async def generate(self, prompt_ids: Any, sampling: Sampling) -> Generation:
        """Generate one turn."""
        started = time.monotonic()
        try:
            output = await self.client.generate(
                request_id=self.request_id,
                prompt_ids=list(prompt_ids),
                sampling_params={**self.sampling_params, "max_tokens": sampling.max_tokens},
            )
        finally:
            self.seconds += time.monotonic() - started
        if output.stop_reason == "aborted":
            raise PolicyError("verl's server aborted the generation")
        # verl's async client returns an empty list if it does not request logprobs
        requested = self.sampling_params.get("logprobs")
        first = output.extra_fields.get("min_global_steps")
        last = output.extra_fields.get("max_global_steps")
        return generation_of(
            output.token_ids,
            (output.log_probs or ()) if requested else None,
            cut=len(output.token_ids) >= sampling.max_tokens,
            turn_end=self.turn_end,
            versions=None if first is None or last is None else (int(first), int(last)),
        )


async def play(
    shared: _Shared, engine: EnginePolicy, row: dict[str, Any], step: int, rollout_config: Any
) -> Episode:
    """Play one episode. An engine error fails the prompt; verl stops if every prompt fails."""
    config, (max_context, max_response) = shared.config, _caps(rollout_config)
    params = engine.sampling_params
    return await shared.rollout.episode(
        config.task_of(row),
        policy=engine,
        renderer=shared.renderer,
        sampling=Sampling(
            temperature=float(params.get("temperature", 1.0)),
            top_p=float(params.get("top_p", 1.0)),
            top_k=max(int(params.get("top_k", 0)), 0),
            max_tokens=config.max_turn_tokens or max_response,
        ),
        limits=config.limits(step, max_context=max_context, max_response=max_response),
    )


def _caps(rollout_config: Any) -> tuple[int, int]:
    """Return the caps on the tokens of a sequence and of its response."""
    max_response = int(rollout_config.response_length)
    context = rollout_config.get("max_model_len") or rollout_config.prompt_length + max_response
    return int(context), max_response


def _success(episode: Episode) -> float | None:
    """Return the success that the environment reported; 0 if a limit cut the episode short."""
    if episode.success is not None:
        return float(episode.success)
    if episode.failed or episode.stop in (StopReason.TERMINATED, StopReason.TRUNCATED):
        return None
    return 0.0
