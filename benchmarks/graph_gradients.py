"""Compare gradients of the plain engine with and without CUDA graphs, and with float32.

    python benchmarks/graph_gradients.py runs/start runs/gpu/engine-0

FOLDER is a model, RUN the output folder of `engine_curve.py` or of a recipe. Takes the gradient of
one recorded update with each, and the time of forward and backward pass. Prints one JSON line, and
writes it to --out.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from algorithms_model import load, micro_batches
from packed import PackedTrunk
from replay_run import Sequences, set_gradient, trained_updates

from gem_core import ConfigError, GemError

RESULT = Path(__file__).parent / "results" / "gpu" / "graph_gradients.json"
REPEATS = 5


@dataclass
class Args:
    model: tyro.conf.Positional[str]
    """model folder, `tiny` or `smollm2`"""
    run: tyro.conf.Positional[Path]
    """output folder with episodes.jsonl"""
    update: int = 0
    """the update to take"""
    room: int = 8192
    """tokens in a micro-batch"""
    out: Path = RESULT
    """file of the result"""


def main(args: Args) -> None:
    updates = trained_updates(args.run)
    if args.update not in updates:
        raise ConfigError(f"{args.run} has no trained update {args.update}; got {len(updates)}")
    if args.room < 1:
        raise ConfigError(f"--room must be 1 or more; got {args.room}")
    sequences = updates[args.update]
    model, _ = load(args.model)
    graph_tokens = args.room + args.room // 8
    trunks = {
        "without graphs": PackedTrunk(model.model),
        "with graphs": PackedTrunk(model.model, graph_tokens=graph_tokens),
    }
    gradients, seconds = {}, {}
    for name, trunk in trunks.items():
        for _ in range(3):  # compiles, and captures graphs
            packed_gradient(model, trunk, sequences, args.room)
        began = _now(model)
        for _ in range(REPEATS):
            gradients[name] = packed_gradient(model, trunk, sequences, args.room)
        seconds[name] = round((_now(model) - began) / REPEATS, 4)
    model.float()
    set_gradient(model, sequences, batch=16)
    exact = _flat(model)
    result: dict[str, Any] = {"run": args.run.name, "update": args.update, "room": args.room}
    result["tokens"] = sum(len(ids) for ids, _ in sequences)
    result["float32"] = {"norm": round(float(exact.norm()), 4)}
    for name, gradient in gradients.items():
        cosine = float(gradient @ exact / (gradient.norm() * exact.norm()))
        norm = round(float(gradient.norm()), 4)
        result[name] = {"norm": norm, "cosine": round(cosine, 5), "seconds": seconds[name]}
    text = json.dumps(result) + "\n"
    args.out.write_text(text, encoding="utf-8")
    print(text, end="")


def packed_gradient(
    model: Any, trunk: PackedTrunk, sequences: Sequences, room: int
) -> torch.Tensor:
    """Return the gradient of the loss of a recorded update, by the passes of the engine."""
    model.zero_grad()
    for part in micro_batches(sequences, [len(ids) for ids, _ in sequences], room):
        ids = [own for own, _ in part]
        positions = [[i for i, w in enumerate(weights) if w] for _, weights in part]
        weights = [w for _, own in part for w in own if w]
        if weights:
            logprobs = trunk.logprobs(model.lm_head.weight, ids, positions)
            (-(torch.tensor(weights, device=logprobs.device) * logprobs).sum()).backward()
    return _flat(model)


def _flat(model: Any) -> torch.Tensor:
    return torch.cat([p.grad.flatten().double() for p in model.parameters()])


def _now(model: Any) -> float:
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    try:
        main(tyro.cli(Args))
    except (GemError, OSError) as error:
        sys.exit(f"error: {error}")
