"""Conformance: run golden episodes through ToyTrainer's batch and loss with gem's advantages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gem_conformance.golden import Case
from gem_conformance.harness import (
    Harness,
    TrainedSequence,
    run_rank,
    start_ranks_of_batches,
)
from gem_conformance.played import PlayedCase, answer
from torch import distributed
from toy_trainer import Sample, ToySettings

from gem_core.adapter_kit.patching import patched
from gem_core.policies.tiny import tiny_model_path
from gem_core.types import Episode
from gem_toy import ADAPTER
from gem_toy.config import GemConfig
from gem_toy.rollout import GemRollout
from gem_toy.trainer import GemToyTrainer

__all__ = ["ToyHarness", "harness"]


class _Replay(GemRollout):
    """A rollout function that returns recorded episodes; the rest of training is unchanged."""

    recorded: Sequence[Episode] = ()

    def episodes(self, prompts: Sequence[Any], trainer: Any) -> list[Episode]:
        return list(self.recorded)


class ToyHarness(Harness):
    """Runs one trainer on the tiny model."""

    adapter = ADAPTER
    carries = frozenset({"logprobs", "total"})
    version = "0"  # default: the version of the installed distribution

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
        return self.ranks_of_batches([(case, parts)])[0]

    def ranks_of_batches(
        self, batches: Sequence[tuple[Case, Sequence[Sequence[Episode]]]]
    ) -> list[list[list[TrainedSequence]]]:
        return start_ranks_of_batches("gem_toy.conformance", batches)

    def play(self, case: PlayedCase) -> list[Episode]:
        trainer, rollout = self._trainer, GemRollout(GemConfig(**case.config))
        trainer.step = case.update
        with patched(trainer.engine, "generate", _scripted, "prompts max_tokens temperature"):
            episodes = rollout.episodes([{"seed": seed} for seed in case.seeds], trainer)
        rollout.close()
        trainer.step = 0
        return episodes

    def _batch(
        self, case: Case, episodes: Sequence[Episode]
    ) -> tuple[list[Sample], dict[str, Any]]:
        """Run the trainer on the episodes up to the input of its loss."""
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
        """Read the sequences from the loss's batch, without padding and aligned with ids."""
        sequences = []
        for i, sample in enumerate(samples):
            length = len(sample.ids)
            numbers = {
                name: batch[name][i, : length - 1].tolist()
                for name in ("mask", "advantages", "logprobs")
            }
            aligned = {name: [0, *values] for name, values in numbers.items()}
            sequences.append(
                TrainedSequence(batch["ids"][i, :length].tolist(), **aligned, total=sample.reward)
            )
        return sequences


def harness() -> ToyHarness:
    """Create the harness for `gem-rl conformance toy`."""
    return ToyHarness()


def _scripted(
    prompts: Sequence[Sequence[int]], max_tokens: int, temperature: float
) -> list[tuple[list[int], list[float]]]:
    """Generate as ToyTrainer's engine does, with the kit's answers."""
    answers = [answer(prompt, max_tokens) for prompt in prompts]
    return [(list(a.ids), list(a.logprobs or ())) for a in answers]


def _rank(parts: list[tuple[Case, list[Episode]]]) -> list[list[TrainedSequence]]:
    """Train one rank's part of each batch."""
    distributed.init_process_group("gloo")
    toy = ToyHarness()
    return [toy._sequences(*toy._batch(*part)) for part in parts]


if __name__ == "__main__":
    run_rank(_rank)
