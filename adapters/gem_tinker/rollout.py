"""Rollout: plays episodes on Tinker's sampling clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinker import ModelInput, SamplingParams

from gem_core.adapter_kit.engine import generation_of
from gem_core.adapter_kit.trainer_rollout import TrainerRollout
from gem_core.rollout.engine import Rollout
from gem_core.types import Episode, Generation, Sampling
from gem_tinker.config import GemConfig

__all__ = ["EnginePolicy", "GemRollout", "play"]


class EnginePolicy:
    """A sampling client as a policy. The requests of all live episodes run at once."""

    def __init__(self, stop_ids: Sequence[int]) -> None:
        self._stop = list(stop_ids)
        self.sampler: tuple[Any, int] = (None, 0)
        """The sampling client, and the number of updates of its weights."""

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Generate one turn at temperature 1, whose logprobs are those that the losses compute."""
        client, version = self.sampler
        params = SamplingParams(max_tokens=sampling.max_tokens, seed=sampling.seed, stop=self._stop)
        response = await client.sample_async(ModelInput.from_ints(list(prompt_ids)), 1, params)
        (sampled,) = response.sequences
        return generation_of(
            sampled.tokens,
            sampled.logprobs,
            cut=sampled.stop_reason == "length",
            turn_end=None,  # a turn that ends with a stop token has the reason "stop"
            versions=(version, version),
        )


class GemRollout:
    """Plays the batches of one run; `engine` keeps the environments open."""

    def __init__(
        self, config: GemConfig, tokenizer: Any, max_context: int | None, seed: int
    ) -> None:
        renderer = config.renderer(tokenizer)
        self.config, self._max_context, self._seed = config, max_context, seed
        ends = (renderer.turn_end, tokenizer.eos_token_id)
        self.policy = EnginePolicy(sorted({end for end in ends if end is not None}))
        self.engine = TrainerRollout(config, policy=self.policy, renderer=renderer)

    def episodes(
        self, seeds: Sequence[int], update: int, evaluation: bool = False
    ) -> list[Episode]:
        """Play one episode per seed, with the limits of an update."""
        config, max_tokens = self.config, self.config.max_turn_tokens or 1
        self.engine.configure(
            sampling=Sampling(max_tokens=max_tokens, seed=self._seed * 1_000_003 + update),
            limits=config.limits(update, max_context=self._max_context),
            concurrency=len(seeds),
        )
        return play(self.engine, config, seeds, evaluation)


def play(
    rollout: Rollout, config: GemConfig, prompts: Sequence[Any], evaluation: bool = False
) -> list[Episode]:
    """Play one episode per prompt and return them in order."""
    tasks = [config.task_of(prompt, i) for i, prompt in enumerate(prompts)]
    return rollout.run_batch(tasks, evaluation=evaluation)
