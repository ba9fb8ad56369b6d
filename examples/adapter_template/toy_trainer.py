"""Toy trainer: a policy-gradient trainer in plain torch that knows nothing of gem. The adapter in gem_toy connects the two.

It has what real trainers have, in a few lines each: settings, an engine that samples, a batch format of its own, advantages per
token, a loss, and several ranks (processes under torch.distributed) that share the data and average their gradients.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import distributed
from transformers import AutoModelForCausalLM, AutoTokenizer

__all__ = ["Engine", "Sample", "ToySettings", "ToyTrainer", "gather"]


@dataclass
class ToySettings:
    """The trainer's own settings."""

    model: str
    updates: int = 10
    batch_size: int = 32
    """Prompts per update, on all ranks together."""
    samples: int = 1
    """Samples per prompt."""
    max_response: int = 256
    """The cap on everything after the prompt."""
    temperature: float = 1.0
    learning_rate: float = 1e-3
    sequence_level: bool = False
    """Average the advantages over each sequence."""
    seed: int = 0


@dataclass
class Sample:
    """One sequence to train on. `mask`, `logprobs` and `advantages` have one number per *predicted* token: for ids[1:]."""

    ids: list[int]
    mask: list[int]
    logprobs: list[float]
    reward: float
    advantages: list[float] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    """Carried along, not used."""


class Engine:
    """Samples from the model that is trained."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer

    @torch.no_grad()
    def generate(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, temperature: float
    ) -> list[tuple[list[int], list[float]]]:
        """(ids, logprobs) of a completion for each prompt; it ends with the end token, unless it was cut at `max_tokens`."""
        width, end, pad = (
            max(map(len, prompts)),
            self.tokenizer.eos_token_id,
            self.tokenizer.pad_token_id,
        )
        ids_B_T = torch.tensor([[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts])
        seen_B_T = torch.tensor(
            [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        )
        sampling = {
            "do_sample": True,
            "temperature": temperature,
            "top_k": 0,
            "max_new_tokens": max_tokens,
        }
        ends = {
            "eos_token_id": end,
            "pad_token_id": pad,
            "output_scores": True,
            "return_dict_in_generate": True,
        }
        output = self.model.generate(input_ids=ids_B_T, attention_mask=seen_B_T, **sampling, **ends)
        logprobs_B_T = self.model.compute_transition_scores(
            output.sequences, output.scores, normalize_logits=True
        )
        completions = []
        for ids, logprobs in zip(output.sequences[:, width:].tolist(), logprobs_B_T.tolist()):
            length = ids.index(end) + 1 if end in ids else len(ids)
            completions.append((ids[:length], logprobs[:length]))
        return completions


class ToyTrainer:
    """Trains on what `rollout(prompts, trainer)` returns; a prompt may be any object."""

    def __init__(
        self,
        settings: ToySettings,
        prompts: Sequence[Any],
        rollout: Callable[[list[Any], ToyTrainer], list[Sample]],
    ) -> None:
        self.settings, self.prompts, self.rollout = settings, prompts, rollout
        self.model = AutoModelForCausalLM.from_pretrained(settings.model, dtype=torch.float32)
        self.tokenizer = AutoTokenizer.from_pretrained(settings.model)
        self.engine = Engine(self.model, self.tokenizer)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=settings.learning_rate)
        several = distributed.is_initialized()
        self.rank: int = distributed.get_rank() if several else 0
        self.ranks: int = distributed.get_world_size() if several else 1
        self.step = 0

    def train(self) -> None:
        """Run all updates."""
        torch.manual_seed(self.settings.seed + self.rank)
        rng = random.Random(self.settings.seed)
        while self.step < self.settings.updates:
            prompts = rng.choices(self.prompts, k=self.settings.batch_size)[self.rank :: self.ranks]
            samples = self.rollout(
                [prompt for prompt in prompts for _ in range(self.settings.samples)], self
            )
            self.compute_advantages(samples)
            self.optimizer.zero_grad()
            loss = self.loss(self.collate(samples))
            loss.backward()
            for parameter in self.model.parameters():
                if self.ranks > 1 and parameter.grad is not None:
                    distributed.all_reduce(parameter.grad)
            grad_norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.log({"loss": float(loss.detach()), "grad_norm": float(grad_norm)})
            self.step += 1

    def compute_advantages(self, samples: Sequence[Sample]) -> None:
        """The reward minus the mean reward of the batch, for every token of a sequence."""
        rewards = [
            reward for part in gather([sample.reward for sample in samples]) for reward in part
        ]
        for sample in samples:
            sample.advantages = [sample.reward - sum(rewards) / len(rewards)] * len(sample.mask)

    def collate(self, samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
        """Samples as tensors, padded on the right."""
        width = max(len(sample.ids) for sample in samples)
        ids = torch.tensor([sample.ids + [0] * (width - len(sample.ids)) for sample in samples])
        batch = {"ids": ids}
        for name in ("mask", "logprobs", "advantages"):
            rows = [getattr(sample, name) for sample in samples]
            batch[name] = torch.tensor(
                [[*row, *[0] * (width - 1 - len(row))] for row in rows], dtype=torch.float32
            )
        return batch

    def loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """-1/Z * sum of A * log pi over the Z trained tokens of all ranks."""
        logp_B_T_V = self.model(input_ids=batch["ids"]).logits[:, :-1].log_softmax(-1)
        logp_B_T = logp_B_T_V.gather(-1, batch["ids"][:, 1:, None])[..., 0]
        advantages = batch["advantages"]
        if self.settings.sequence_level:
            advantages = (advantages * batch["mask"]).sum(1, keepdim=True) / batch["mask"].sum(
                1, keepdim=True
            ).clamp(min=1)
        trained_tokens = sum(gather(int(batch["mask"].sum())))
        return -(logp_B_T * advantages * batch["mask"]).sum() / max(trained_tokens, 1)

    def log(self, metrics: dict[str, float]) -> None:
        """Called after every update; does nothing."""


def gather(value: Any) -> list[Any]:
    """The value of every rank, in their order."""
    if not distributed.is_initialized():
        return [value]
    values: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values
