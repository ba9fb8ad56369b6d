"""Train the episodes of a run once more with plain torch, and compare the gradient norms.

    python benchmarks/replay_run.py runs/start runs/gpu/openrlhf-0 --learning-rate 3e-5

The first folder is the model of the run, the second is the output folder of a recipe that makes one
optimizer step per update and clips gradients at 1. Prints one JSON line per update: the norm that
the trainer reported, and that of the replay. A trainer that computes another gradient, or makes
another step of its optimizer, has other weights after it, and so other norms.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM

from gem_core import Episode, GemError, read_episodes, token_sequences
from gem_core.errors import ConfigError
from gem_core.policies.models import model_path
from gem_core.training.metrics_file import read_metrics

__all__ = ["Args", "Sequences", "replay", "reported_norms", "set_gradient", "trained_updates"]

Sequences = Sequence[tuple[list[int], list[float]]]
"""The token ids of each trained sequence, and the weight of each token in the loss."""


@dataclass
class Args:
    model: tyro.conf.Positional[str]
    """the model with which the run began: a folder, `tiny` or `smollm2`"""
    run: tyro.conf.Positional[Path]
    """output folder of a recipe, with episodes.jsonl and metrics.jsonl"""
    learning_rate: float
    """learning rate of the run, which is constant"""
    weight_decay: float = 0.0
    """weight decay of the run: 0.01 in the recipes of verl, RL2 and SkyRL, 0 in the others"""
    updates: int | None = None
    """number of updates to replay; default: all"""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """type of the weights in forward and backward pass; the optimizer's are in float32"""
    batch: int = 64
    """sequences in one forward pass"""
    device: str = "cuda"
    """device of the model"""


def trained_updates(folder: Path) -> dict[int, Sequences]:
    """Return the sequences of each update of a run, from its record.

    Updates without trained tokens are skipped.
    """
    updates = defaultdict[int, list[Episode]](list)
    for episode in read_episodes(folder / "episodes.jsonl"):
        if "update" in episode.final_info:
            updates[episode.final_info["update"]].append(episode)
    if 0 not in updates:
        raise ConfigError(
            f"{folder}/episodes.jsonl has no episodes of update 0; give the output folder of a "
            "recipe, whose record has the update of each trained episode"
        )
    weighted = {update: _weighted(updates[update]) for update in sorted(updates)}
    return {update: own for update, own in weighted.items() if own}


def _weighted(episodes: Sequence[Episode]) -> Sequences:
    """Give every trained token of the update the same weight, times its advantage."""
    trained = [(s, e.final_info["advantages"]) for e in episodes for s in token_sequences(e)]
    tokens = sum(sum(sequence.mask) for sequence, _ in trained)
    weights = (s.broadcast([a or 0.0 for a in advantages]) for s, advantages in trained)
    return [
        (list(s.ids), [w * m / tokens for w, m in zip(own, s.mask)])
        for (s, _), own in zip(trained, weights)
        if tokens
    ]


def reported_norms(folder: Path) -> dict[int, float]:
    """Return the gradient norm that the trainer wrote for each update."""
    lines = read_metrics(folder)
    norms = {line["step"]: line["grad_norm"] for line in lines}
    if len(norms) < len(lines):
        raise ConfigError(f"{folder} has several runs; give a folder with one")
    return norms


def set_gradient(model: Any, sequences: Sequences, batch: int, autocast: bool = False) -> None:
    """Compute the gradient of the loss: minus the weighted sum of the logprobs."""
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
    if batch < 1:
        raise ConfigError(f"--batch must be at least 1, got {batch}")
    for start in range(0, len(sequences), batch):
        ids, weights = zip(*sequences[start : start + batch])
        yield (
            pad_sequence([torch.tensor(own) for own in ids], batch_first=True).to(device),
            pad_sequence([torch.tensor(own) for own in weights], batch_first=True).to(device),
        )


def replay(args: Args) -> Iterator[dict[str, float]]:
    """Train on the recorded episodes; yield the norms of each update."""
    updates, reported = trained_updates(args.run), reported_norms(args.run)
    dtype = getattr(torch, args.dtype)
    model = AutoModelForCausalLM.from_pretrained(model_path(args.model), dtype=dtype).to(
        args.device
    )
    weights = list(model.parameters())
    masters = [weight.detach().float().clone() for weight in weights]
    adam = torch.optim.AdamW(masters, args.learning_rate, weight_decay=args.weight_decay)
    for update, sequences in list(updates.items())[: args.updates]:
        if update not in reported:  # the run was interrupted
            return
        set_gradient(model, sequences, args.batch)
        for master, weight in zip(masters, weights):
            master.grad = weight.grad.float()
        norm = float(torch.nn.utils.clip_grad_norm_(masters, 1.0))
        adam.step()
        with torch.no_grad():
            for master, weight in zip(masters, weights):
                weight.copy_(master)
        yield {"update": update, "reported": reported[update], "replayed": norm}


if __name__ == "__main__":
    try:
        for line in replay(tyro.cli(Args)):
            print(json.dumps(line), flush=True)
    except (GemError, OSError) as error:
        sys.exit(f"error: {error}")
