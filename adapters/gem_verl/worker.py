"""Worker: per-turn rewards for verl's legacy trainer (V0) and what is built on it, such as one_step_off_policy.

There a worker puts one number on the last token of an episode. This one puts the reward channel in its place, and names the
step, which a horizon schedule goes by. Choose it with
`+actor_rollout_ref.rollout.agent.agent_loop_manager_class=gem_verl.worker.GemAgentLoopManager`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import ray
from verl.experimental.agent_loop.agent_loop import AgentLoopManager, AgentLoopWorker

from gem_core.errors import ConfigError

__all__ = ["GemAgentLoopManager", "GemAgentLoopWorker"]

_KEY = "gem_token_rewards"


class GemAgentLoopWorker(AgentLoopWorker):  # type: ignore[misc]
    """verl's worker, with dense rewards."""

    async def generate_sequences(self, batch: Any) -> Any:
        """Plays a batch; the step is known to the batch, and not yet to its rows."""
        batch.non_tensor_batch["global_steps"] = np.full(len(batch), max(int(batch.meta_info.get("global_steps", 0)), 0))
        return await super().generate_sequences(batch)

    async def _agent_loop_postprocess(self, output: Any, validate: Any, **kwargs: Any) -> Any:
        if isinstance(output, list):
            raise ConfigError(f"an episode has {len(output)} rows, verl's legacy trainer takes one; set trainer.use_v1=True")
        for what, ids, room in (
            ("prompt", output.prompt_ids, self.rollout_config.prompt_length),
            ("response", output.response_ids, self.rollout_config.response_length),
        ):
            if len(ids) > room:
                raise ConfigError(f"a {what} has {len(ids)} tokens, data.max_{what}_length is {room}; raise it")
        found = await super()._agent_loop_postprocess(output, validate, **kwargs)
        found.extra_fields[_KEY] = output.token_rewards
        return found

    def _postprocess(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        rewards = [item.extra_fields.pop(_KEY) for item in inputs]
        found = super()._postprocess(inputs, *args, **kwargs)
        scores = found.batch["rm_scores"]
        scores.zero_()
        for row, tokens in enumerate(rewards):
            scores[row, : len(tokens)] = scores.new_tensor(tokens)
        return found


class GemAgentLoopManager(AgentLoopManager):  # type: ignore[misc]
    """verl's manager, with workers of that kind."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.agent_loop_workers_class = ray.remote(GemAgentLoopWorker)
        super().__init__(*args, **kwargs)
