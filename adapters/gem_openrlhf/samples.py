"""Samples: OpenRLHF's samples generator, with metrics of evaluation and records of filtered ones.

It sends prompts to the engines and receives the played episodes as samples.
"""

from __future__ import annotations

import logging
from typing import Any

import ray
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

from gem_core.errors import EnvError
from gem_core.training.metrics import BatchMetrics
from gem_openrlhf.convert import EpisodeLabel
from gem_openrlhf.records import find_recorder
from gem_openrlhf.rollout import SharedTokenizer

__all__ = ["GemSamplesGenerator"]

_log = logging.getLogger("gem_core.training")


class GemSamplesGenerator(SamplesGenerator):
    """OpenRLHF's samples generator."""

    received: list[str]
    """The keys of the episodes of the current call."""
    evaluation: BatchMetrics
    filtering = False
    """Whether the current call filters groups of episodes."""
    failed_episodes = 0
    """Failed episodes since the last finished one, with dynamic filtering."""

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

    def _generate_vllm(
        self, dataloader_iter: Any, num_prompts: int, dynamic_filtering: bool, **kwargs: Any
    ) -> tuple[list[Any], int, bool]:
        """Play as OpenRLHF does, and record the episodes that dynamic filtering drops."""
        self.received, self.filtering = [], dynamic_filtering
        samples, consumed, exhausted = super()._generate_vllm(
            dataloader_iter, num_prompts, dynamic_filtering, **kwargs
        )
        accepted = {getattr(label, "key", "") for sample in samples for label in sample.labels}
        dropped = [key for key in self.received if key not in accepted]
        recorder = find_recorder() if dropped else None
        if recorder is not None:
            ray.get(recorder.write_untrained.remote(dropped))
        if dropped and exhausted and not samples:
            _log.warning(
                "--algo.dynamic_filtering_enable dropped the last %d episodes of the dataset, "
                "so they made no update; the last %d of them failed",
                len(dropped),
                min(self.failed_episodes, len(dropped)),
            )
        return samples, consumed, exhausted

    def _process_response_into_experience(self, response: Any, **kwargs: Any) -> Any:
        label = response["label"]
        if isinstance(label, EpisodeLabel):
            self.received.append(label.key)
            if self.filtering:
                self._watch(label)
        return super()._process_response_into_experience(response, **kwargs)

    def _watch(self, label: EpisodeLabel) -> None:
        """Stop a run in which every episode fails. Dropped episodes do not reach `UpdateLog`."""
        self.failed_episodes = self.failed_episodes + 1 if label.episode.failed else 0
        updates, rollout = label.config.max_failed_updates, self.args.rollout
        if not updates or self.failed_episodes < (
            updates * rollout.batch_size * rollout.n_samples_per_prompt
        ):
            return
        failure = label.episode.failure
        traceback = "" if failure is None else f"\n\n{failure.traceback.rstrip()}"
        raise EnvError(
            f"every one of the last {self.failed_episodes} episodes failed, as many as {updates} "
            "updates need, and --algo.dynamic_filtering_enable drops them, so nothing was trained; "
            f"the last failure is: {failure}. Fix the environment (`gem-rl check ID` plays it "
            "without a model), or set max_failed_updates=0 to continue regardless"
            f"{traceback}"
        )
