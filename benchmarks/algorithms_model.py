"""The model of `algorithms.py`, its optimizer, its critic, and its logprobs in micro-batches."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from packed import PackedTrunk

from gem_core.errors import ConfigError
from gem_core.policies import load_smollm2, load_tiny
from gem_core.policies.tiny import load_folder

__all__ = [
    "ROOM",
    "Critic",
    "Optimizer",
    "fingerprint",
    "flat",
    "load",
    "logprobs_of",
    "micro_batches",
    "to_bfloat16",
]

ROOM = 65536
"""Tokens in a micro-batch, which take 60 GB of a GPU with SmolLM2-135M."""


def load(model: str) -> tuple[Any, Any]:
    """Load (model, tokenizer) by name or folder; on a GPU, if there is one, in bfloat16."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if model == "tiny":
        loaded, tokenizer = load_tiny(device)
    elif model == "smollm2":
        loaded, tokenizer = load_smollm2(device=device)
    elif (Path(model) / "config.json").is_file():
        loaded, tokenizer = load_folder(model, "--model", device)
    else:
        raise ConfigError(
            f"--model must be 'tiny', 'smollm2' or a model folder with a config.json; got {model!r}"
        )
    if device == "cuda":
        to_bfloat16(loaded)
    loaded.train()
    return loaded, tokenizer


def to_bfloat16(model: Any) -> None:
    """Convert the parameters, but not the buffers: the rotary embedding stays in float32."""
    for p in model.parameters():
        p.data = p.data.to(torch.bfloat16)


def fingerprint(model: Any) -> str:
    """Hash the weights, to check that all runs of a table start from the same model."""
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.float().sum(dtype=torch.float64).cpu().numpy().tobytes())
    return digest.hexdigest()[:12]


class Optimizer:
    """Adam on float32 copies of a model's parameters: bfloat16 would round the small steps to 0."""

    def __init__(self, model: torch.nn.Module, rate: float) -> None:
        model.zero_grad()  # a failed run may have left gradients
        self.parameters = list(model.parameters())
        self.copies = [p.detach().float().clone() for p in self.parameters]
        self.rate = rate
        self.adam = torch.optim.Adam(self.copies, lr=rate, fused=self.copies[0].is_cuda)

    def step(self, share: float = 1.0) -> float:
        """Clip the gradients to norm 1, step with `share` of the rate, return the norm before."""
        for copied, p in zip(self.copies, self.parameters):
            copied.grad = None if p.grad is None else p.grad.float()
            p.grad = None
        norm = torch.nn.utils.clip_grad_norm_(self.copies, 1.0)
        for group in self.adam.param_groups:
            group["lr"] = self.rate * share
        self.adam.step()
        self.adam.zero_grad()  # frees the float32 gradients
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.copies)
        return float(norm)


class Critic(torch.nn.Module):
    """A copy of the model with a value head, which is read before the first token of a turn."""

    def __init__(self, model: Any, graph_tokens: int = 0) -> None:
        """`graph_tokens`: see `PackedTrunk`."""
        super().__init__()
        self.trunk = copy.deepcopy(model.model)
        self.packed = PackedTrunk(self.trunk, graph_tokens=graph_tokens)
        self.head = torch.nn.Linear(model.config.hidden_size, 1, device=model.device)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    def forward(
        self, sequences: Sequence[Sequence[int]], positions: Sequence[Sequence[int]]
    ) -> torch.Tensor:
        """Return the values at these positions of each sequence, flat."""
        return self.head(self.packed.at(sequences, positions).float())[:, 0]


def micro_batches(
    items: Sequence[Any], lengths: Sequence[int], room: int = ROOM
) -> Iterator[list[Any]]:
    """Group items into few batches of about equal length that fit into memory."""
    parts = -(-sum(lengths) // room)
    for i in range(parts):
        if items[i::parts]:
            yield list(items[i::parts])


def flat(values: Sequence[Sequence[float]], masks: Sequence[Sequence[int]], device: Any) -> Any:
    """Return the values of the tokens in the masks."""
    kept = [v for own, mask in zip(values, masks) for v, m in zip(own, mask) if m]
    return torch.tensor(kept, dtype=torch.float32, device=device)


def logprobs_of(
    model: Any,
    trunk: PackedTrunk,
    sequences: Sequence[Sequence[int]],
    masks: Sequence[Sequence[int]],
) -> torch.Tensor:
    """Return log pi of the tokens in the masks, flat."""
    positions = [[i for i, m in enumerate(mask) if m] for mask in masks]
    return trunk.logprobs(model.lm_head.weight, sequences, positions)
