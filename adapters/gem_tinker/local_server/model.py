"""Model: a LoRA model in plain torch, with the losses and the optimizer of the Tinker API.

The losses are sums over tokens, as https://tinker-docs.thinkingmachines.ai/tinker/losses defines
them: an untrained token is one with an advantage of 0.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

__all__ = ["LOSSES", "LoraModel", "Sequences"]

_ALPHA = 32
"""The LoRA update is scaled by alpha / rank."""
_MICRO_BATCH = 64
LOSSES = ("cross_entropy", "importance_sampling", "ppo", "cispo")


@dataclass
class Sequences:
    """The decoded data of a forward_backward request: one list or tensor per sequence."""

    ids: list[Any]
    inputs: dict[str, list[Any]]
    """`target_tokens`, `logprobs`, `advantages` or `weights`, as tensors aligned with `ids`."""


class LoraModel:
    """A base model with LoRA weights, their accumulated gradient and their optimizer."""

    def __init__(
        self, base: Any, config: Mapping[str, Any], *, full_gradient: bool = False
    ) -> None:
        """`config`: rank, seed, train_attn, train_mlp and train_unembed, as in Tinker's LoraConfig.

        `full_gradient`: also accumulate the gradient of the base weights, which are not trained.
        """
        self.base, self.config = base, dict(config)
        for parameter in base.parameters():
            parameter.requires_grad_(full_gradient)
        generator = torch.Generator()
        generator.manual_seed(config.get("seed") or 0)
        rank = config["rank"]
        self.lora: dict[str, Any] = {}
        for name, module in base.named_modules():
            if isinstance(module, torch.nn.Linear) and _is_trained(name, config):
                rows, columns = module.weight.shape
                bound = 1 / math.sqrt(columns)
                down = (torch.rand(rank, columns, generator=generator) * 2 - 1) * bound
                self.lora[f"{name}.down"] = down.requires_grad_()
                self.lora[f"{name}.up"] = torch.zeros(rows, rank, requires_grad=True)
        self.optimizer = torch.optim.AdamW(list(self.lora.values()))

    def forward_backward(
        self, data: Sequences, loss: str, config: Mapping[str, float], *, backward: bool
    ) -> tuple[list[Any], float]:
        """Return the logprobs of the target tokens of each sequence, and the sum of the losses."""
        logprobs, total = [], 0.0
        for first in range(0, len(data.ids), _MICRO_BATCH):
            part = slice(first, first + _MICRO_BATCH)
            inputs = {name: values[part] for name, values in data.inputs.items()}
            with torch.set_grad_enabled(backward):
                targets = pad_sequence(inputs["target_tokens"], batch_first=True)
                logits = torch.func.functional_call(
                    self.base,
                    self.weights(),
                    kwargs={"input_ids": pad_sequence(data.ids[part], batch_first=True)},
                    tie_weights=False,  # the LoRA of a tied unembedding is not one of the embedding
                ).logits.float()
                padded = logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
                own = [row[: len(t)] for row, t in zip(padded, inputs["target_tokens"])]
                value = _loss(loss, own, inputs, config)
            if backward:
                value.backward()
            logprobs += [row.detach() for row in own]
            total += float(value.detach())
        return logprobs, total

    def optim_step(self, adam: Mapping[str, float]) -> dict[str, float]:
        """Make one step of AdamW with Tinker's parameters, and clear the gradient."""
        for group in self.optimizer.param_groups:
            group |= {
                "lr": adam["learning_rate"],
                "betas": (adam["beta1"], adam["beta2"]),
                "eps": adam["eps"],
                "weight_decay": adam["weight_decay"],
            }
        clip = adam["grad_clip_norm"] or math.inf
        norm = torch.nn.utils.clip_grad_norm_(list(self.lora.values()), clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.base.zero_grad()
        return {"grad_norm": float(norm)}

    def weights(self) -> dict[str, Any]:
        """Return the weights that differ from the base model, by parameter name."""
        weights = {}
        for name in {key.rpartition(".")[0] for key in self.lora}:
            up, down = self.lora[f"{name}.up"], self.lora[f"{name}.down"]
            base = self.base.get_submodule(name).weight
            weights[f"{name}.weight"] = base + up @ down * (_ALPHA / self.config["rank"])
        return weights

    def merged(self) -> Any:
        """Return a copy of the base model with the LoRA weights added, for sampling."""
        model = copy.deepcopy(self.base).requires_grad_(False)
        with torch.no_grad():
            for name, weight in self.weights().items():
                model.get_submodule(name.rpartition(".")[0]).weight = torch.nn.Parameter(
                    weight.detach().clone(), requires_grad=False
                )
        return model.eval()

    def state(self) -> dict[str, Any]:
        """Return a copy of what a checkpoint holds."""
        lora = {name: value.detach().clone() for name, value in self.lora.items()}
        optimizer = copy.deepcopy(self.optimizer.state_dict())
        return {"lora": lora, "config": self.config, "optimizer": optimizer}

    def load(self, state: Mapping[str, Any], *, optimizer: bool) -> None:
        """Load a checkpoint, with or without the state of the optimizer."""
        with torch.no_grad():
            for name, value in self.lora.items():
                value.copy_(state["lora"][name])
        if optimizer:
            self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))


def _is_trained(module: str, config: Mapping[str, Any]) -> bool:
    parts = {".self_attn.": "train_attn", ".mlp.": "train_mlp", ".lm_head": "train_unembed"}
    return any(part in f".{module}" and config[flag] for part, flag in parts.items())


def _loss(
    name: str, own: Sequence[Any], inputs: Mapping[str, Sequence[Any]], config: Mapping[str, float]
) -> Any:
    """Return the sum of a loss over all tokens."""
    logprobs = torch.cat(list(own))
    if name == "cross_entropy":
        return -(logprobs * torch.cat(list(inputs["weights"]))).sum()
    advantages = torch.cat(list(inputs["advantages"]))
    ratio = torch.exp(logprobs - torch.cat(list(inputs["logprobs"])))
    if name == "importance_sampling":
        return -(ratio * advantages).sum()
    low, high = config.get("clip_low_threshold", 0.8), config.get("clip_high_threshold", 1.2)
    clipped = ratio.clamp(low, high)
    if name == "ppo":
        return -torch.minimum(ratio * advantages, clipped * advantages).sum()
    return -(clipped.detach() * logprobs * advantages).sum()  # cispo
