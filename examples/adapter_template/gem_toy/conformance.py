"""Conformance: golden episodes through the real ToyTrainer: its batch, gem's advantages, its loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import distributed
from toy_trainer import Sample, ToySettings

from gem_core.adapter_kit.conformance.golden import Case
from gem_core.adapter_kit.conformance.harness import Harness, TrainedSequence, run_rank, start_ranks
from gem_core.policies.tiny import tiny_model_path
from gem_core.types import Episode
from gem_toy import ADAPTER
from gem_toy.config import GemConfig
from gem_toy.rollout import GemRollout
from gem_toy.trainer import GemToyTrainer

__all__ = ["ToyHarness", "harness"]


class _Replay(GemRollout):
    """A rollout function that returns recorded episodes. Everything after the rollout is what training runs."""

    recorded: Sequence[Episode] = ()

    def episodes(self, prompts: Sequence[Any], trainer: Any) -> list[Episode]:
        return list(self.recorded)


class ToyHarness(Harness):
    """One trainer on the tiny model."""

    adapter = ADAPTER
    carries = frozenset({"logprobs", "total"})
    version = "0"  # a trainer that is installed as a distribution has its own

    def __init__(self) -> None:
        config = GemConfig("game:GuessTheNumber-v0-easy")
        self._rollout = _Replay(config)
        self._trainer = GemToyTrainer(config, ToySettings(str(tiny_model_path())), self._rollout)

    def train(self, case: Case) -> list[TrainedSequence]:
        samples, batch = self._batch(case, case.episodes)
        return self._sequences(samples, batch)

    def gradient(self, case: Case) -> Mapping[str, Any]:
        _, batch = self._batch(case, case.episodes)
        self._trainer.model.zero_grad()
        self._trainer.loss(batch).backward()
        return {
            name: p.grad.clone()
            for name, p in self._trainer.model.named_parameters()
            if p.grad is not None
        }

    def ranks(self, case: Case, parts: Sequence[Sequence[Episode]]) -> list[list[TrainedSequence]]:
        return start_ranks("gem_toy.conformance", [(case, list(part)) for part in parts])

    def _batch(
        self, case: Case, episodes: Sequence[Episode]
    ) -> tuple[list[Sample], dict[str, Any]]:
        """What the trainer makes of the episodes, up to the input of its loss."""
        trainer = self._trainer
        trainer.gem_config = replace(
            trainer.gem_config,
            advantage=case.estimator,
            gamma=case.gamma,
            estimator_kwargs=case.arguments,
        )
        self._rollout.recorded = episodes
        samples = trainer.rollout([], trainer)
        trainer.compute_advantages(samples)
        return samples, trainer.collate(samples)

    def _sequences(
        self, samples: Sequence[Sample], batch: Mapping[str, Any]
    ) -> list[TrainedSequence]:
        """The tensors without padding, aligned with ids: read from the batch, which is what the loss gets."""
        sequences = []
        for i, sample in enumerate(samples):
            length = len(sample.ids)
            numbers = {
                name: batch[name][i, : length - 1].tolist()
                for name in ("mask", "advantages", "logprobs")
            }
            aligned = {name: [0, *row] for name, row in numbers.items()}
            sequences.append(
                TrainedSequence(batch["ids"][i, :length].tolist(), **aligned, total=sample.reward)
            )
        return sequences


def harness() -> ToyHarness:
    """What `gem-rl conformance toy` runs."""
    return ToyHarness()


def _rank(given: tuple[Case, list[Episode]]) -> list[TrainedSequence]:
    """One rank's part of the batch, in a process of its own."""
    distributed.init_process_group("gloo")
    own = ToyHarness()
    return own._sequences(*own._batch(*given))


if __name__ == "__main__":
    run_rank(_rank)
