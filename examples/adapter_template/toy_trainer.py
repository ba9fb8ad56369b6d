"""Toy trainer: a policy-gradient trainer in plain torch, without gem; gem_toy connects the two.

It has the parts of a real trainer in a few lines each: settings, an engine that samples, its own
batch format, per-token advantages, a loss, and several ranks (torch.distributed processes) that
split the data and add their gradients.
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
    """Maximum tokens after the prompt."""
    temperature: float = 1.0
    learning_rate: float = 1e-3
    sequence_level: bool = False
    """Average the advantages over each sequence."""
    seed: int = 0


@dataclass
class Sample:
    """One training sequence. `mask`, `logprobs` and `advantages` are aligned with ids[1:]."""

    ids: list[int]
    mask: list[int]
    logprobs: list[float]
    reward: float
    advantages: list[float] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    """Data for the rollout function's author; the trainer does not use it."""


class Engine:
    """Samples from the trained model."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer

    @torch.no_grad()
    def generate(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, temperature: float
    ) -> list[tuple[list[int], list[float]]]:
        """Return (ids, logprobs) per prompt; ids include the end token unless they were cut."""
        end, pad = self.tokenizer.eos_token_id, self.tokenizer.pad_token_id
        width = max(map(len, prompts))
        ids_B_T = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts])
        mask_B_T = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        output = self.model.generate(
            input_ids=ids_B_T,
            attention_mask=mask_B_T,
            do_sample=True,
            temperature=temperature,
            top_k=0,
            max_new_tokens=max_tokens,
            eos_token_id=end,
            pad_token_id=pad,
            output_scores=True,
            return_dict_in_generate=True,
        )
        logprobs_B_T = self.model.compute_transition_scores(
            output.sequences, output.scores, normalize_logits=True
        )
        completions = []
        for ids, logprobs in zip(output.sequences[:, width:].tolist(), logprobs_B_T.tolist()):
            length = ids.index(end) + 1 if end in ids else len(ids)
            completions.append((ids[:length], logprobs[:length]))
        return completions


class ToyTrainer:
    """Trains on the samples of `rollout(prompts, trainer)`; a prompt may be any object."""

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
        is_distributed = distributed.is_initialized()
        self.rank: int = distributed.get_rank() if is_distributed else 0
        self.ranks: int = distributed.get_world_size() if is_distributed else 1
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
        """Set each token's advantage to its sequence's reward minus the batch mean."""
        rewards = [
            reward for part in gather([sample.reward for sample in samples]) for reward in part
        ]
        for sample in samples:
            sample.advantages = [sample.reward - sum(rewards) / len(rewards)] * len(sample.mask)

    def collate(self, samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
        """Convert samples to tensors, padded on the right."""
        width = max(len(sample.ids) for sample in samples)
        ids = torch.tensor([sample.ids + [0] * (width - len(sample.ids)) for sample in samples])
        batch = {"ids": ids}
        for name in ("mask", "logprobs", "advantages"):
            values = [getattr(sample, name) for sample in samples]
            padded = [[*v, *[0] * (width - 1 - len(v))] for v in values]
            batch[name] = torch.tensor(padded, dtype=torch.float32)
        return batch

    def loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return -1/Z * sum of A * log pi over the Z trained tokens of all ranks."""
        logp_B_T_V = self.model(input_ids=batch["ids"]).logits[:, :-1].log_softmax(-1)
        logp_B_T = logp_B_T_V.gather(-1, batch["ids"][:, 1:, None])[..., 0]
        advantages = batch["advantages"]
        if self.settings.sequence_level:
            lengths = batch["mask"].sum(1, keepdim=True).clamp(min=1)
            advantages = (advantages * batch["mask"]).sum(1, keepdim=True) / lengths
        trained_tokens = sum(gather(int(batch["mask"].sum())))
        return -(logp_B_T * advantages * batch["mask"]).sum() / max(trained_tokens, 1)

    def log(self, metrics: dict[str, float]) -> None:
        """Called after every update; does nothing."""


def gather(value: Any) -> list[Any]:
    """Return the value of every rank, in rank order."""
    if not distributed.is_initialized():
        return [value]
    values: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values
