"""Compute the gradient of a run's first update from its record, in several precisions.

    python benchmarks/first_gradient.py runs/start runs/gpu/openrlhf-0 runs/gpu/verl-0

The first folder is the model of the runs, the others are output folders of recipes. Prints one JSON
line per run: for each precision, the norm of the gradient, and its cosine with that in float32.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM

from gem_core import Episode, GemError, read_episodes, token_sequences
from gem_core.errors import ConfigError
from gem_core.training.metrics_file import read_metrics

PRECISIONS = {
    "float32": (torch.float32, False),
    "float32 weights, bfloat16 autocast": (torch.float32, True),
    "bfloat16 weights": (torch.bfloat16, False),
}
"""The type of weights and gradients, and whether autocast computes in bfloat16."""


@dataclass
class Args:
    model: tyro.conf.Positional[str]
    """the model with which the runs began"""
    runs: tyro.conf.Positional[tuple[Path, ...]]
    """output folders of recipes, with episodes.jsonl and metrics.jsonl"""
    batch: int = 64
    """sequences in one forward pass"""
    device: str = "cuda"
    """device of the model"""


Sequences = Sequence[tuple[list[int], list[float]]]
"""The token ids of each trained sequence, and the weight of each token in the loss."""


def trained_updates(folder: Path) -> list[Sequences]:
    """Return the sequences of each update of a run, from its record."""
    updates = defaultdict[int, list[Episode]](list)
    for episode in read_episodes(folder / "episodes.jsonl"):
        if "update" in episode.final_info:
            updates[episode.final_info["update"]].append(episode)
    if 0 not in updates:
        raise ConfigError(f"{folder}/episodes.jsonl has no episodes of update 0")
    return [_weighted(episodes) for _, episodes in sorted(updates.items())]


def _weighted(episodes: Sequence[Episode]) -> Sequences:
    trained = [(s, e.final_info["advantages"]) for e in episodes for s in token_sequences(e)]
    tokens = sum(sum(sequence.mask) for sequence, _ in trained)
    weights = (s.broadcast([a or 0.0 for a in advantages]) for s, advantages in trained)
    return [
        (list(s.ids), [w * m / tokens for w, m in zip(own, s.mask)])
        for (s, _), own in zip(trained, weights)
    ]


def set_gradient(model: Any, sequences: Sequences, batch: int, autocast: bool = False) -> None:
    """Compute the gradient of the loss."""
    device = next(model.parameters()).device
    bfloat16 = torch.autocast(device.type, torch.bfloat16) if autocast else nullcontext()
    model.zero_grad()
    for ids, weights in _padded(sequences, batch, device):
        with bfloat16:  # causal attention: padding at the right does not change other tokens
            logits = model(input_ids=ids).logits[:, :-1]
        own = logits.float().log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        (-(weights[:, 1:] * own).sum()).backward()


def _padded(
    sequences: Sequences, batch: int, device: torch.device
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for start in range(0, len(sequences), batch):
        ids, weights = zip(*sequences[start : start + batch])
        yield (
            pad_sequence([torch.tensor(own) for own in ids], batch_first=True).to(device),
            pad_sequence([torch.tensor(own) for own in weights], batch_first=True).to(device),
        )


def main(args: Args) -> None:
    updates = {folder: trained_updates(folder)[0] for folder in args.runs}
    found: dict[Path, dict[str, torch.Tensor]] = {folder: {} for folder in updates}
    for name, (dtype, autocast) in PRECISIONS.items():
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype).to(args.device)
        for folder, sequences in updates.items():
            set_gradient(model, sequences, args.batch, autocast)
            parts = [p.grad.flatten().cpu().double() for p in model.parameters()]
            found[folder][name] = torch.cat(parts)
    for folder, own in found.items():
        exact = own["float32"]
        row: dict[str, Any] = {"run": folder.name, "sequences": len(updates[folder])}
        row["reported"] = read_metrics(folder)[0]["grad_norm"]
        for name, vector in own.items():
            cosine = vector @ exact / (vector.norm() * exact.norm())
            row[name] = {"norm": round(float(vector.norm()), 4), "cosine": round(float(cosine), 5)}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    try:
        main(tyro.cli(Args))
    except (GemError, OSError) as error:
        sys.exit(f"error: {error}")
