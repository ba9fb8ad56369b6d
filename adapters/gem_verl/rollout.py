"""Rollout: the agent loop verl plays an episode with, on verl's own inference servers.

verl makes one loop per episode and runs all episodes of a worker process on one event loop. What they share is on a stage: the
environments, the threads their steps run on, records, and the renderer.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any
from uuid import uuid4

import torch
from pydantic import Field
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register

from gem_core.errors import ConfigError, PolicyError
from gem_core.rollout.renderer import Renderer
from gem_core.rollout.stage import Stage
from gem_core.training.metrics import BatchMetrics
from gem_core.types import Episode, FinishReason, Generation, Sampling, StopReason
from gem_verl.config import AGENT, GemConfig, channel, check_config, one_row_only, spec_of
from gem_verl.convert import Row, to_rows

__all__ = ["GemAgentLoop", "GemAgentLoopOutput", "GemStage"]


class GemAgentLoopOutput(AgentLoopOutput):  # type: ignore[misc]
    """verl's output of an agent loop, with a reward for each token of the response in place of one number at its end."""

    token_rewards: list[float] = Field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """What verl's default trainer (V1) stores of a row: `rm_scores` is the only channel to an estimator."""
        found: dict[str, Any] = super().as_dict()
        found["rm_scores"] = torch.tensor(found.pop("token_rewards"), dtype=torch.float32)
        return found


class GemStage(Stage):
    """What the episodes of one worker process have in common under one spec."""

    def __init__(self, spec: GemConfig, tokenizer: Any) -> None:
        super().__init__()
        self.spec = spec
        self.renderer = Renderer(tokenizer, template_kwargs=spec.template_kwargs)


_stages: dict[tuple[str, int], GemStage] = {}


@register(AGENT)
class GemAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """Plays any environment. Which one stands under `data.gem`, or under `gem` in a loop's entry in an agent loop YAML file."""

    def __init__(self, trainer_config: Any, *args: Any, gem: Any = None, **kwargs: Any) -> None:
        super().__init__(trainer_config, *args, **kwargs)
        self.stage = self._stage(gem or {})

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> GemAgentLoopOutput | list[GemAgentLoopOutput]:
        """verl's contract: one row of the data set in, an episode's rows out."""
        if "global_steps" not in row:  # V1 names the step, and so does gem's worker
            raise ConfigError(
                "this worker of verl puts the reward of a whole episode on its last token; set "
                "+actor_rollout_ref.rollout.agent.agent_loop_manager_class=gem_verl.worker.GemAgentLoopManager, or "
                "trainer.use_v1=True"
            )
        step = max(int(row["global_steps"]) - 1, 0)  # verl counts the update that is under way, from 1
        server = _Server(self.server_manager, sampling_params, self.stage.renderer, step)
        episode = await self.play(server, row, step)
        if server.failure is not None:  # a broken server is no bad rollout: verl decides what becomes of the run
            raise server.failure
        return self.output(episode, sampling_params, server)

    async def play(self, server: _Server, row: dict[str, Any], step: int) -> Episode:
        """The episode a row asks for."""
        spec, stage, rollout = self.stage.spec, self.stage, self.rollout_config
        room = rollout.get("max_model_len") or rollout.prompt_length + rollout.response_length
        limits = spec.limits(step, max_context=int(room), max_response=int(rollout.response_length))
        asked = server.asked
        sampling = Sampling(
            temperature=float(asked.get("temperature", 1.0)),
            top_p=float(asked.get("top_p", 1.0)),
            top_k=max(int(asked.get("top_k", 0)), 0),
            max_tokens=spec.max_turn_tokens or int(rollout.response_length),
        )
        episode = await stage.play(spec.task_of(row), server, stage.renderer, sampling, limits)
        if spec.record is not None:
            stage.record(spec.record, episode)
        return episode

    def output(
        self, episode: Episode, sampling_params: dict[str, Any], server: _Server
    ) -> GemAgentLoopOutput | list[GemAgentLoopOutput]:
        """The rows of an episode, as verl takes them: an episode without anything to train is a row that trains nothing."""
        rows = to_rows(episode, self.stage.renderer.turn_end or 0, **channel(self.config.algorithm))
        if len(rows) > 1:
            why = one_row_only(self.config)
            if why:
                raise ConfigError(f"the episode of {episode.env_id} with seed {episode.seed} has {len(rows)} rows; {why}")
        wanted = bool(sampling_params.get("logprobs"))
        found = [self._output(row, episode, server, wanted) for row in rows]
        return found if len(found) > 1 else found[0]

    def _output(self, row: Row, episode: Episode, server: _Server, logprobs: bool) -> GemAgentLoopOutput:
        told = BatchMetrics.of([episode])
        versions = [turn.versions for turn in episode.turns if turn.versions is not None] or [(server.step, server.step)]
        return GemAgentLoopOutput(
            prompt_ids=row.prompt_ids,
            response_ids=row.response_ids,
            response_mask=row.mask,
            response_logprobs=row.logprobs if logprobs else None,
            token_rewards=row.rewards,
            reward_score=episode.total_reward or 0.0,  # set, so that verl asks no reward function
            num_turns=2 * len(episode.turns),  # verl counts both sides of a conversation
            metrics=AgentLoopMetrics(generate_sequences=server.seconds, tool_calls=max(episode.seconds - server.seconds, 0.0)),
            multi_modal_data={},
            extra_fields={
                "min_global_steps": min(first for first, _ in versions),
                "max_global_steps": max(last for _, last in versions),
                "turn_scores": list(episode.rewards),
                "tool_rewards": [],
                # verl averages these over a validation set, and leaves None out
                "reward_extra_info": {
                    "success": _success(episode),
                    "return": episode.total_reward,
                    "turns": None if episode.failed else float(len(episode.turns)),
                    "failed": float(episode.failed),
                },
                "gem": {
                    "metrics": asdict(told),
                    "played_id": episode.played_id,
                    "failure": "" if episode.failure is None else str(episode.failure),
                },
            },
        )

    def _stage(self, more: Any) -> GemStage:
        key = (str([self.config.data.get("gem"), self.config.algorithm, more]), id(self.tokenizer))
        if key not in _stages:
            _stages[key] = GemStage(check_config(self.config, spec_of(self.config, more)), self.tokenizer)
        return _stages[key]


def _success(episode: Episode) -> float | None:
    """What the environment said; an episode that a limit cut short before it could is no success."""
    if episode.success is not None:
        return float(episode.success)
    return None if episode.failed or episode.stop in (StopReason.TERMINATED, StopReason.TRUNCATED) else 0.0


class _Server:
    """verl's inference servers as a policy, for one episode: the same request id keeps it on one server."""

    def __init__(self, client: Any, asked: dict[str, Any], renderer: Renderer, step: int) -> None:
        self.client, self.step = client, step
        self.asked = dict(asked)
        if renderer.turn_end is not None and renderer.turn_end != renderer.tokenizer.eos_token_id:
            self.asked["stop_token_ids"] = [renderer.turn_end]  # else no turn of this template would end
        self.turn_end = renderer.turn_end
        self.request = uuid4().hex
        self.seconds = 0.0
        """Spent in generation."""
        self.failure: Exception | None = None
        """What the servers raised: an error of the run, not of an episode."""

    async def generate(self, prompt_ids: Any, sampling: Sampling) -> Generation:
        """The ids of one turn."""
        began = time.monotonic()
        try:
            found = await self.client.generate(
                request_id=self.request,
                prompt_ids=list(prompt_ids),
                sampling_params={**self.asked, "max_tokens": sampling.max_tokens},
            )
        except Exception as error:
            self.failure = error
            raise
        finally:
            self.seconds += time.monotonic() - began
        self.failure = None  # an attempt that failed was made good
        if found.stop_reason == "aborted":
            raise PolicyError("verl's server aborted the generation")
        ids = tuple(found.token_ids)
        if self.asked.get("logprobs") and found.log_probs is None:
            raise PolicyError("verl's server returned no logprobs, although rollout.calculate_log_probs asks for them")
        cut = len(ids) >= sampling.max_tokens and ids[-1] != self.turn_end
        first, last = (found.extra_fields.get(f"{which}_global_steps") for which in ("min", "max"))
        return Generation(
            ids,
            None if found.log_probs is None else tuple(found.log_probs),
            (FinishReason.LENGTH if cut else FinishReason.STOP) if ids else FinishReason.EMPTY,
            versions=None if first is None or last is None else (int(first), int(last)),
        )
