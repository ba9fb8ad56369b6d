"""Samples: OpenRLHF's samples generator, with metrics of evaluation and records of filtered ones.

It sends prompts to the engines and receives the played episodes as samples.
"""

from __future__ import annotations

from typing import Any

import ray
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

from gem_core.training.metrics import BatchMetrics
from gem_openrlhf.convert import EpisodeLabel
from gem_openrlhf.records import find_recorder
from gem_openrlhf.rollout import SharedTokenizer

__all__ = ["GemSamplesGenerator"]


class GemSamplesGenerator(SamplesGenerator):
    """OpenRLHF's samples generator."""

    received: list[str]
    """The keys of the episodes of the current call."""
    evaluation: BatchMetrics

    @classmethod
    def replace(cls, generator: Any) -> None:
        """Make OpenRLHF's generator one of gem's. OpenRLHF constructs it in a constructor."""
        generator.__class__ = cls
        generator.received, generator.evaluation = [], BatchMetrics()
        # send engines a reference to the tokenizer with each prompt, instead of a copy
        generator.tokenizer = SharedTokenizer(generator.tokenizer)

    def generate_eval_samples(self, **kwargs: Any) -> list[Any]:
        """Play the evaluation seeds as OpenRLHF does, and keep the metrics of the episodes."""
        samples: list[Any] = super().generate_eval_samples(**kwargs)
        labels = [label for sample in samples for label in sample.labels]
        self.evaluation = BatchMetrics.of(
            [label.episode for label in labels if isinstance(label, EpisodeLabel)]
        )
        return samples

    def evaluation_metrics(self) -> dict[str, float]:
        """Return the metrics of the last evaluation, as the trainer logs them."""
        return {f"gem/{name}": value for name, value in self.evaluation.means().items()}

    def _generate_vllm(self, *args: Any, **kwargs: Any) -> tuple[list[Any], int, bool]:
        """Play as OpenRLHF does, and record the episodes that dynamic filtering drops."""
        self.received = []
        samples, consumed, exhausted = super()._generate_vllm(*args, **kwargs)
        accepted = {getattr(label, "key", "") for sample in samples for label in sample.labels}
        dropped = [key for key in self.received if key not in accepted]
        recorder = find_recorder() if dropped else None
        if recorder is not None:
            ray.get(recorder.write_untrained.remote(dropped))
        return samples, consumed, exhausted

    def _process_response_into_experience(self, response: Any, **kwargs: Any) -> Any:
        if isinstance(response["label"], EpisodeLabel):
            self.received.append(response["label"].key)
        return super()._process_response_into_experience(response, **kwargs)
