"""Measure how much of an optimizer's steps reaches weights that are rounded to bfloat16.

    python benchmarks/bfloat16_steps.py --learning-rate 3e-5

Trainers keep float32 weights for the optimizer and compute with weights rounded to bfloat16. If the
float32 weights begin as rounded numbers, steps below half the distance between two such numbers
have no effect until they add up. Otherwise, some weights cross a rounding boundary at every step,
and the mean change is close to that of the steps. This is a simulation: every weight moves by the
learning rate, as with Adam, always in one random direction. SmolLM2's weights come from a quantized
file, and many of them are exact in bfloat16, so its second column is below 100 %.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import tyro

from gem_core.policies.models import load_model


@dataclass
class Args:
    model: str = "smollm2"
    """model folder, hub name, `tiny` or `smollm2`"""
    learning_rate: float = 3e-5
    """size of a step"""


def main(args: Args) -> None:
    model, _ = load_model(args.model)
    weights = torch.cat([p.detach().float().flatten() for p in model.parameters() if p.dim() == 2])
    rounded = weights.bfloat16().float()
    torch.manual_seed(0)
    direction = torch.randn_like(weights).sign()
    print("steps | begin as bfloat16 | begin as float32")
    for steps in (1, 2, 4, 8, 16):
        change = direction * args.learning_rate * steps
        reached = [
            (((start + change).bfloat16().float() - rounded) * direction).mean()
            / change.abs().mean()
            for start in (rounded, weights)
        ]
        print(f"{steps:5} | {reached[0]:17.0%} | {reached[1]:.0%}", flush=True)


if __name__ == "__main__":
    main(tyro.cli(Args))
