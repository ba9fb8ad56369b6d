"""Rollout: the agent loop that plays an episode on verl's own inference servers.

verl makes one loop per episode and runs all episodes of a worker process on one event loop. They share environments, step
threads, renderer and records.
"""

from __future__ import annotations

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

from gem_core.errors import ConfigError, EngineError, PolicyError
from gem_core.records.file import WorkerRecords
from gem_core.rollout.engine import Rollout
from gem_core.rollout.renderer import Renderer
from gem_core.types import Episode, FinishReason, Generation, Sampling, StopReason
from gem_verl.channel import token_rewards
from gem_verl.config import AGENT, GemConfig, check_settings, one_sequence_reason, read_config
from gem_verl.convert import to_batch

__all__ = ["EnginePolicy", "GemAgentLoop", "GemAgentLoopOutput", "play"]


class GemAgentLoopOutput(AgentLoopOutput):
    """verl's output of an agent loop, with a reward for each response token instead of one on the last."""

    token_rewards: list[float] = Field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """What verl's default trainer (V1) stores of a sequence."""
        fields: dict[str, Any] = super().as_dict()
        fields["rm_scores"] = torch.tensor(fields.pop("token_rewards"), dtype=torch.float32)
        return fields


@dataclass
class _Shared:
    """What the episodes of one worker process share under one config."""

    config: GemConfig
    renderer: Renderer
    rollout: Rollout = field(default_factory=lambda: Rollout(policy_errors="raise"))
    records: WorkerRecords = field(default_factory=WorkerRecords)


_shared: dict[tuple[str, int], _Shared] = {}


@register(AGENT)
class GemAgentLoop(AgentLoopBase):
    """Plays any environment. Its config is under `data.gem`, or under `gem` in a loop's entry in an agent loop YAML file."""

    def __init__(self, trainer_config: Any, *args: Any, gem: Any = None, **kwargs: Any) -> None:
        super().__init__(trainer_config, *args, **kwargs)
        key = (str([self.config.data.get("gem"), self.config.algorithm, gem]), id(self.tokenizer))
        if key not in _shared:
            config = read_config(self.config, gem)
            check_settings(self.config, config)
            _shared[key] = _Shared(
                config, Renderer(self.tokenizer, template_kwargs=config.template_kwargs)
            )
        self.shared = _shared[key]

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        """verl's contract: a row of the data set in, the sequences of an episode out."""
        if "global_steps" not in row:
            raise ConfigError(
                "this worker of verl passes no global_steps and puts the reward of a whole episode on its last token; set "
                "trainer.use_v1=True, or for the legacy trainer the agent_loop_manager_class in gem_verl.legacy"
            )
        step = max(int(row["global_steps"]) - 1, 0)  # verl counts the update under way, from 1
        engine = EnginePolicy(self.server_manager, sampling_params, self.shared.renderer)
        episode = await self.episode(engine, row, step)
        return self.output(episode, engine, step)

    async def episode(self, engine: EnginePolicy, row: dict[str, Any], step: int) -> Episode:
        """The episode of a row, recorded."""
        episode = await play(self.shared, engine, row, step, self.rollout_config)
        self.shared.records.write(self.shared.config.record, [episode])
        return episode

    def output(
        self, episode: Episode, engine: EnginePolicy, step: int
    ) -> GemAgentLoopOutput | list[GemAgentLoopOutput]:
        """The sequences of an episode as verl takes them. The first one carries the episode itself, for gem's trainers."""
        end_id, algorithm = self.shared.renderer.turn_end or 0, self.config.algorithm
        sequences = to_batch(episode, end_id)
        reason = one_sequence_reason(self.config, self.shared.config) if len(sequences) > 1 else ""
        if reason:
            raise ConfigError(
                f"the episode of {episode.env_id} with seed {episode.seed} has {len(sequences)} sequences, and {reason}"
            )
        versions = [turn.versions for turn in episode.turns if turn.versions is not None] or [
            (step, step)
        ]
        outputs = []
        for number, (fields, rewards) in enumerate(
            zip(sequences, token_rewards(episode, end_id, algorithm))
        ):
            if not engine.sampling_params.get("logprobs"):
                fields["response_logprobs"] = None
            extra_fields = {
                "min_global_steps": min(first for first, _ in versions),
                "max_global_steps": max(last for _, last in versions),
                "turn_scores": list(episode.rewards),
                "tool_rewards": [],
                # verl averages these over a validation set, and skips None
                "reward_extra_info": {
                    "success": _success(episode),
                    "return": episode.total_reward,
                    "turns": None if episode.failed else float(len(episode.turns)),
                    "failed": float(episode.failed),
                },
                "gem": pickle.dumps(episode)
                if number == 0
                else b"",  # bytes: pydantic would dump an episode as a dict
            }
            outputs.append(
                GemAgentLoopOutput(
                    **fields,
                    token_rewards=rewards,
                    reward_score=episode.total_reward
                    or 0.0,  # set, so verl calls no reward function
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


class EnginePolicy:
    """verl's inference servers as a policy, for one episode: its request id keeps it on one server."""

    def __init__(self, client: Any, sampling_params: dict[str, Any], renderer: Renderer) -> None:
        self.client, self.turn_end = client, renderer.turn_end
        self.sampling_params = dict(sampling_params)
        if renderer.turn_end is not None and renderer.turn_end != renderer.tokenizer.eos_token_id:
            self.sampling_params["stop_token_ids"] = [
                renderer.turn_end
            ]  # else no turn of this template would end
        self.request_id = uuid4().hex
        self.seconds = 0.0
        """Time spent in generation."""

    async def generate(self, prompt_ids: Any, sampling: Sampling) -> Generation:
        """One turn."""
        began = time.monotonic()
        try:
            output = await self.client.generate(
                request_id=self.request_id,
                prompt_ids=list(prompt_ids),
                sampling_params={**self.sampling_params, "max_tokens": sampling.max_tokens},
            )
        finally:
            self.seconds += time.monotonic() - began
        if output.stop_reason == "aborted":
            raise PolicyError("verl's server aborted the generation")
        if self.sampling_params.get("logprobs") and output.log_probs is None:
            raise EngineError(
                "verl's server returned no logprobs, although rollout.calculate_log_probs asks for them"
            )
        ids = tuple(output.token_ids)
        cut = len(ids) >= sampling.max_tokens and ids[-1] != self.turn_end
        first, last = (output.extra_fields.get(f"{which}_global_steps") for which in ("min", "max"))
        return Generation(
            ids,
            None if output.log_probs is None else tuple(output.log_probs),
            (FinishReason.LENGTH if cut else FinishReason.STOP) if ids else FinishReason.EMPTY,
            versions=None if first is None or last is None else (int(first), int(last)),
        )


async def play(
    shared: _Shared, engine: EnginePolicy, row: dict[str, Any], step: int, rollout_config: Any
) -> Episode:
    """Play the episode of a row of the data set. An error of verl's servers is raised: verl then fails the prompt."""
    config, longest = shared.config, int(rollout_config.response_length)
    context = int(rollout_config.get("max_model_len") or rollout_config.prompt_length + longest)
    params = engine.sampling_params
    return await shared.rollout.episode(
        config.task_of(row),
        policy=engine,
        renderer=shared.renderer,
        sampling=Sampling(
            temperature=float(params.get("temperature", 1.0)),
            top_p=float(params.get("top_p", 1.0)),
            top_k=max(int(params.get("top_k", 0)), 0),
            max_tokens=config.max_turn_tokens or longest,
        ),
        limits=config.limits(step, max_context=context, max_response=longest),
    )


def _success(episode: Episode) -> float | None:
    """What the environment reported; an episode that a limit cut short is no success."""
    if episode.success is not None:
        return float(episode.success)
    return (
        None
        if episode.failed or episode.stop in (StopReason.TERMINATED, StopReason.TRUNCATED)
        else 0.0
    )
