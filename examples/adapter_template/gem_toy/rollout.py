"""Rollout: ToyTrainer's rollout function, which plays one episode per prompt on its engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toy_trainer import Engine, Sample, ToyTrainer

from gem_core.adapter_kit.settings import model_context
from gem_core.adapter_kit.trainer_rollout import TrainerRollout
from gem_core.policies.batching import BatchPolicy
from gem_core.records.file import WorkerRecords
from gem_core.rollout.engine import Rollout
from gem_core.types import Episode, FinishReason, Generation, Sampling
from gem_toy.config import GemConfig
from gem_toy.convert import to_batch

__all__ = ["EnginePolicy", "GemRollout", "play"]


class EnginePolicy:
    """The trainer's engine as a policy: ids in, ids out, without re-encoding text."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.weight_version = 0
        """The update that made the weights; every turn records it."""

    def generate(self, prompts: list[list[int]], sampling: Sampling) -> list[Generation]:
        """Generate one turn per prompt."""
        completions = self.engine.generate(prompts, sampling.max_tokens, sampling.temperature)
        end, version = self.engine.tokenizer.eos_token_id, self.weight_version
        return [
            Generation(
                tuple(ids),
                tuple(logprobs),
                FinishReason.STOP if ids[-1] == end else FinishReason.LENGTH,
                versions=(version, version),
            )
            for ids, logprobs in completions
        ]


class GemRollout:
    """The rollout function of one `GemConfig`; keeps environments and records open."""

    def __init__(self, config: GemConfig) -> None:
        self.config = config
        self._rollout: Rollout | None = None
        self._policy: EnginePolicy | None = None
        self._records: WorkerRecords | None = None

    def __call__(self, prompts: list[Any], trainer: ToyTrainer) -> list[Sample]:
        """Play one episode per prompt and return the samples, as ToyTrainer expects."""
        episodes = self.episodes(prompts, trainer)
        if self._records is None:
            self._records = WorkerRecords(str(trainer.rank))
        self._records.write(self.config.record, episodes)
        return to_batch(episodes, trainer.tokenizer.eos_token_id)

    def episodes(self, prompts: Sequence[Any], trainer: ToyTrainer) -> list[Episode]:
        """Play the episodes of one batch."""
        config, settings = self.config, trainer.settings
        if self._rollout is None or self._policy is None:
            self._policy = EnginePolicy(trainer.engine)
            # The engine blocks and takes many prompts: BatchPolicy batches those of all episodes.
            self._rollout = TrainerRollout(
                config,
                policy=BatchPolicy(self._policy.generate, retry=False),
                renderer=config.renderer(trainer.tokenizer),
            )
        self._policy.weight_version = trainer.step
        max_tokens = config.max_turn_tokens or settings.max_response
        self._rollout.configure(
            sampling=Sampling(temperature=settings.temperature, max_tokens=max_tokens),
            limits=config.limits(
                trainer.step,
                max_context=model_context(trainer.model.config),
                max_response=settings.max_response,
            ),
            concurrency=len(prompts),
        )
        return play(self._rollout, config, prompts)

    def close(self) -> None:
        """Close environments and records."""
        if self._rollout is not None:
            self._rollout.close()
        if self._records is not None:
            self._records.close()
        self._rollout = self._records = None


def play(rollout: Rollout, config: GemConfig, prompts: Sequence[Any]) -> list[Episode]:
    """Play one episode per prompt and return them in order."""
    return rollout.run_batch(
        [config.task_of(prompt, index) for index, prompt in enumerate(prompts)]
    )
