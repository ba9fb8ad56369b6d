"""Legacy: turn rewards for verl's legacy trainer (V0) and its derivatives (one_step_off_policy).

verl's legacy worker puts one number on the last token of an episode. gem's worker writes the token
rewards of `gem_verl.channel` instead. It also passes the step to the rows, which a horizon schedule
needs. Select it with `trainer.use_v1=False` and
`+actor_rollout_ref.rollout.agent.agent_loop_manager_class=gem_verl.legacy.GemAgentLoopManager`.

To drop the legacy trainer, delete this file and its test.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import ray
from verl.experimental.agent_loop.agent_loop import AgentLoopManager, AgentLoopWorker

from gem_core.adapter_kit.settings import reject
from gem_core.errors import ConfigError
from gem_verl.checks import rewrites_history
from gem_verl.config import read_config

__all__ = ["GemAgentLoopManager", "GemAgentLoopWorker"]

_KEY = "gem_token_rewards"


class GemAgentLoopWorker(AgentLoopWorker):
    """verl's worker with a reward for each response token."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        rewrites = rewrites_history(read_config(config))
        message = (
            f"{rewrites}, which splits an episode into several sequences; verl's legacy trainer "
            "takes one. Set trainer.use_v1=True, or keep the history as it was sampled"
        )
        reject([(rewrites, message)])
        super().__init__(config, *args, **kwargs)

    async def generate_sequences(self, batch: Any) -> Any:
        """Play a batch. Copies the step, which verl stores once per batch, to every row."""
        batch.non_tensor_batch["global_steps"] = np.full(
            len(batch), max(int(batch.meta_info.get("global_steps", 0)), 0)
        )
        return await super().generate_sequences(batch)

    async def _agent_loop_postprocess(self, output: Any, validate: Any, **kwargs: Any) -> Any:
        if isinstance(output, list):
            raise ConfigError(
                f"an episode has {len(output)} sequences; verl's legacy trainer takes one. "
                "Set trainer.use_v1=True"
            )
        for part, ids, limit in (
            ("prompt", output.prompt_ids, self.rollout_config.prompt_length),
            ("response", output.response_ids, self.rollout_config.response_length),
        ):
            if len(ids) > limit:
                raise ConfigError(
                    f"a {part} has {len(ids)} tokens; raise data.max_{part}_length={limit}"
                )
        del output.extra_fields["gem"]  # the episode; only gem's trainers read it
        item = await super()._agent_loop_postprocess(output, validate, **kwargs)
        item.extra_fields[_KEY] = output.token_rewards
        return item

    def _postprocess(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        rewards = [item.extra_fields.pop(_KEY) for item in inputs]
        batch = super()._postprocess(inputs, *args, **kwargs)
        scores = batch.batch["rm_scores"]
        scores.zero_()
        for i, tokens in enumerate(rewards):
            scores[i, : len(tokens)] = scores.new_tensor(tokens)
        return batch


class GemAgentLoopManager(AgentLoopManager):
    """verl's manager with `GemAgentLoopWorker`s."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.agent_loop_workers_class = ray.remote(GemAgentLoopWorker)
        super().__init__(*args, **kwargs)
