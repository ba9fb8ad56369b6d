"""Conformance: runs the golden episodes through Tinker's client and gem's local server.

Tinker is a remote service. The real client sends the batches to `gem_tinker.local_server`, which
decodes them and computes the losses that Tinker documents, on the tiny model.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gem_conformance.golden import Case
from gem_conformance.harness import Harness, TrainedSequence
from gem_conformance.played import PlayedCase, answer
from tinker import TensorData
from tinker.types import SampledSequence, SampleResponse

from gem_core.training.sequences import TokenSequence, token_sequences
from gem_core.types import Episode, FinishReason
from gem_tinker import ADAPTER
from gem_tinker.config import GemConfig, Loss, TinkerSettings
from gem_tinker.convert import Row
from gem_tinker.local_server import LocalServer
from gem_tinker.rollout import GemRollout
from gem_tinker.trainer import GemTinkerTrainer, check_batch, put_advantages

__all__ = ["TinkerHarness", "harness"]


class TinkerHarness(Harness):
    """Harness for Tinker: its client, and a local server with the tiny model, in float32."""

    adapter = ADAPTER
    carries = frozenset({"logprobs", "total"})

    def __init__(self, loss: Loss = "importance_sampling") -> None:
        self.loss = loss
        self._folder = tempfile.TemporaryDirectory(prefix="gem_tinker_")
        self.server = LocalServer("tiny", self._folder.name, inspected=True)
        os.environ.setdefault("TINKER_API_KEY", "tml-local")
        config = GemConfig("game:GuessTheNumber-v0-easy", max_turn_tokens=16)
        settings = TinkerSettings(
            "tiny",
            out=self._folder.name,
            rank=4,
            loss=loss,
            learning_rate=0.0,  # all cases see the weights of the tiny model
            base_url=self.server.url,
        )
        self.trainer = GemTinkerTrainer(config, settings)

    def train(self, case: Case) -> list[TrainedSequence]:
        rows = self._batch(case)
        totals = [e.total_reward for e in case.episodes for _ in _trained_sequences(e)]
        return [
            TrainedSequence(
                ids=[*ids, targets[-1]],
                mask=sequence.mask,
                advantages=[0.0, *advantages],
                logprobs=[0.0, *logprobs],
                total=total,
            )
            for (sequence, _), total, ids, targets, logprobs, advantages in zip(
                rows, totals, *self._received(rows), strict=True
            )
        ]

    def gradient(self, case: Case) -> Mapping[str, Any]:
        """Return the gradient of the server's loss, with the current weights as the sampler's."""
        rows = self._batch(case)
        outputs = self.trainer.client.forward([d for _, d in rows], self.loss).result()
        current = []
        for (_, datum), output in zip(rows, outputs.loss_fn_outputs, strict=True):
            logprobs = TensorData(output["logprobs"].data, "float32")
            inputs = {**datum.loss_fn_inputs, "logprobs": logprobs}
            current.append(replace(datum, loss_fn_inputs=inputs))
        (training,) = self.server.service.trainings.values()
        training.model.base.zero_grad()
        self.trainer.client.forward_backward(current, self.loss).result()
        return {
            name: parameter.grad.clone()
            for name, parameter in training.model.base.named_parameters()
            if parameter.grad is not None
        }

    def gradient_factor(self, case: Case) -> float:
        """Return the number of trained tokens: Tinker's losses are sums over tokens."""
        return float(sum(sum(sequence.mask) for sequence, _ in self._batch(case)))

    def ranks(self, case: Case, parts: Sequence[Sequence[Episode]]) -> list[list[TrainedSequence]]:
        """Split the batch: one process plays and trains all of it, so there are no other ranks."""
        whole = replace(case, episodes=tuple(episode for part in parts for episode in part))
        sequences = iter(self.train(whole))
        counts = [sum(len(_trained_sequences(episode)) for episode in part) for part in parts]
        return [[next(sequences) for _ in range(count)] for count in counts]

    def play(self, case: PlayedCase) -> list[Episode]:
        """Play with the adapter's rollout; only the sampling client is replaced."""
        tokenizer = self.trainer.client.get_tokenizer()
        rollout = GemRollout(GemConfig(**case.config), tokenizer, self.max_context, 0)
        rollout.policy.sampler = _ScriptedSampler(), case.update
        with rollout.engine:
            return rollout.episodes(case.seeds, case.update)

    def close(self) -> None:
        """Stop the server and remove its files."""
        self.server.close()
        self._folder.cleanup()

    def _batch(self, case: Case) -> list[Row]:
        config = replace(
            self.trainer.config,
            advantage=case.estimator,
            gamma=case.gamma,
            estimator_kwargs=case.arguments,
        )
        rows, _ = put_advantages(config, case.episodes)
        check_batch(rows)
        return rows

    def _received(self, rows: Sequence[Row]) -> tuple[list[Any], ...]:
        """Send a batch as an update does; return ids, targets, logprobs and advantages.

        The trainer does not send sequences whose advantages are all 0; they are read from the rows.
        """
        names = ("target_tokens", "logprobs", "advantages")
        self.server.service.received.clear()
        self.trainer._train_on(rows)
        received: Iterator[list[list[Any]]] = (
            [values.tolist() for values in (ids, *inputs)]
            for data in self.server.service.received
            for ids, *inputs in zip(data.ids, *(data.inputs[name] for name in names))
        )
        result = []
        for _, datum in rows:
            inputs = [list(datum.loss_fn_inputs[name].data) for name in names]
            unsent = [datum.model_input.to_ints(), *inputs]
            result.append(next(received) if any(inputs[-1]) else unsent)
        assert next(received, None) is None, "the server received more than the batch"
        return tuple([row[i] for row in result] for i in range(4))


class _ScriptedSampler:
    """A sampling client that gives the kit's answers."""

    async def sample_async(self, prompt: Any, num_samples: int, params: Any) -> SampleResponse:
        generation = answer(prompt.to_ints(), params.max_tokens)
        sequence = SampledSequence(
            stop_reason="stop" if generation.finish is FinishReason.STOP else "length",
            sequence_id="",
            _tokens_list=list(generation.ids),
            _logprobs_list=list(generation.logprobs or ()),
        )
        return SampleResponse([sequence])


def _trained_sequences(episode: Episode) -> list[TokenSequence]:
    return [sequence for sequence in token_sequences(episode) if sequence.trained]


def harness() -> TinkerHarness:
    """Create the harness for `gem-rl conformance tinker`."""
    return TinkerHarness()
