"""Compute the gradient of a run's first update from its record, in several precisions.

    python benchmarks/first_gradient.py runs/start runs/gpu/openrlhf-0 runs/gpu/verl-0

The first folder is the model of the runs, the others are output folders of recipes. Writes one JSON
line per run, for `gpu_report.py`: for each precision, the norm of the gradient, and its cosine with
that in float32.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import tyro
from replay_run import reported_norms, set_gradient, trained_updates
from transformers import AutoModelForCausalLM

from gem_core import GemError
from gem_core.errors import ConfigError
from gem_core.policies.models import model_path

RESULT = Path(__file__).parent / "results" / "gpu" / "first_gradient.jsonl"
T = TypeVar("T")
PRECISIONS = {
    "float32": (torch.float32, False),
    "float32 weights, bfloat16 autocast": (torch.float32, True),
    "bfloat16 weights": (torch.bfloat16, False),
}
"""The type of weights and gradients, and whether autocast computes in bfloat16."""


@dataclass
class Args:
    model: tyro.conf.Positional[str]
    """the model with which the runs began: a folder, `tiny` or `smollm2`"""
    runs: tyro.conf.Positional[tuple[Path, ...]]
    """output folders of recipes, with episodes.jsonl and metrics.jsonl"""
    batch: int = 64
    """sequences in one forward pass"""
    device: str = "cuda"
    """device of the model"""
    out: Path = RESULT
    """file of the results"""


def _first(folder: Path, of_updates: Mapping[int, T]) -> T:
    if 0 not in of_updates:
        raise ConfigError(f"{folder} has no update 0 that was trained and written to metrics.jsonl")
    return of_updates[0]


def main(args: Args) -> None:
    if not args.runs:
        raise ConfigError("give the output folder of at least one run")
    updates = {folder: _first(folder, trained_updates(folder)) for folder in args.runs}
    for folder, sequences in updates.items():
        if not any(weight for _, weights in sequences for weight in weights):
            raise ConfigError(
                f"{folder} has no gradient in update 0, where every advantage is zero; give runs "
                "with more episodes in an update"
            )
    reported = {folder: _first(folder, reported_norms(folder)) for folder in args.runs}
    found: dict[Path, dict[str, torch.Tensor]] = {folder: {} for folder in args.runs}
    for name, (dtype, autocast) in PRECISIONS.items():
        model = AutoModelForCausalLM.from_pretrained(model_path(args.model), dtype=dtype).to(
            args.device
        )
        for folder, sequences in updates.items():
            set_gradient(model, sequences, args.batch, autocast)
            parts = [p.grad.flatten().cpu().double() for p in model.parameters()]
            found[folder][name] = torch.cat(parts)
    lines = []
    for folder, own in found.items():
        exact = own["float32"]
        row: dict[str, Any] = {"run": folder.name, "sequences": len(updates[folder])}
        row["reported"] = reported[folder]
        for name, vector in own.items():
            cosine = vector @ exact / (vector.norm() * exact.norm())
            row[name] = {"norm": round(float(vector.norm()), 4), "cosine": round(float(cosine), 5)}
        lines.append(json.dumps(row) + "\n")
    args.out.write_text("".join(lines), encoding="utf-8")
    print("".join(lines), end="")


if __name__ == "__main__":
    try:
        main(tyro.cli(Args))
    except (GemError, OSError) as error:
        sys.exit(f"error: {error}")
