"""Train the episodes of a run once more with plain torch, and compare the gradient norms.

    python benchmarks/replay_run.py runs/start runs/gpu/openrlhf-0 --learning-rate 3e-5

The first folder is the model of the run, the second is the output folder of a recipe that makes one
optimizer step per update. Prints one JSON line per update: the norm that the trainer reported, and
that of the replay. A trainer that computes another gradient, or makes another step of its
optimizer, has other weights after it, and so other norms.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from first_gradient import set_gradient, trained_updates
from transformers import AutoModelForCausalLM

from gem_core import GemError
from gem_core.training.metrics_file import read_metrics


@dataclass
class Args:
    model: tyro.conf.Positional[str]
    """the model with which the run began"""
    run: tyro.conf.Positional[Path]
    """output folder of a recipe, with episodes.jsonl and metrics.jsonl"""
    learning_rate: float
    """learning rate of the run, which is constant"""
    weight_decay: float = 0.0
    """weight decay of the run (0.01 in verl's recipes)"""
    updates: int | None = None
    """number of updates to replay; default: all"""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """type of the weights in forward and backward pass; the optimizer's are in float32"""
    batch: int = 64
    """sequences in one forward pass"""
    device: str = "cuda"
    """device of the model"""
    final: Path | None = None
    """model that the run saved after these updates; prints how far the replay ends from it"""


def replay(args: Args) -> list[dict[str, float]]:
    """Train on the recorded episodes; print and return the norms of each update."""
    dtype = getattr(torch, args.dtype)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype).to(args.device)
    weights = list(model.parameters())
    masters = [w.detach().float().clone().requires_grad_() for w in weights]
    begun = [w.detach().clone() for w in masters]
    adam = torch.optim.AdamW(masters, args.learning_rate, weight_decay=args.weight_decay)
    reported = read_metrics(args.run)
    lines = []
    for step, sequences in enumerate(trained_updates(args.run)[: args.updates]):
        set_gradient(model, sequences, args.batch)
        for master, weight in zip(masters, weights):
            master.grad = weight.grad.float()
        norm = float(torch.nn.utils.clip_grad_norm_(masters, 1.0))
        adam.step()
        with torch.no_grad():
            for master, weight in zip(masters, weights):
                weight.copy_(master)
        lines.append({"update": step, "reported": reported[step]["grad_norm"], "replayed": norm})
        print(json.dumps(lines[-1]), flush=True)
    if args.final is not None:
        saved = AutoModelForCausalLM.from_pretrained(args.final, dtype=dtype).to(args.device)
        print(f"distance / length of the way: {_distance(saved, weights, begun):.3g}")
    return lines


@torch.no_grad()
def _distance(saved: Any, weights: list[Any], begun: list[Any]) -> float:
    """Return the distance of two models, divided by how far the training moved the weights."""
    pairs = zip(saved.parameters(), weights, begun)
    squares = [((a - b).float().square().sum(), (b - c).square().sum()) for a, b, c in pairs]
    apart, moved = map(sum, zip(*squares))
    return float((apart / moved) ** 0.5)


if __name__ == "__main__":
    try:
        replay(tyro.cli(Args))
    except (GemError, OSError) as error:
        sys.exit(f"error: {error}")
