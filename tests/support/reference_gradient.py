"""The gradient of a run's first update, computed from its record without a trainer."""

from __future__ import annotations

from pathlib import Path

import torch

from gem_core.policies.tiny import load_tiny
from gem_core.records.file import read_episodes
from gem_core.training.sequences import token_sequences

__all__ = ["first_gradient_norm"]


def first_gradient_norm(folder: Path) -> float:
    """Return the norm of the first update's gradient, in which every trained token counts equally.

    `folder` has the record of a run of the tiny model with one optimizer step per update.
    """
    model, _ = load_tiny()
    episodes = read_episodes(folder / "episodes.jsonl")
    first = [e for e in episodes if e.final_info.get("update") == 0]
    trained = [(s, e.final_info["advantages"]) for e in first for s in token_sequences(e)]
    tokens = sum(sum(sequence.mask) for sequence, _ in trained)
    for sequence, advantages in trained:
        ids, mask = torch.tensor([sequence.ids]), torch.tensor(sequence.mask)
        weights = torch.tensor(sequence.broadcast([a or 0.0 for a in advantages])) * mask / tokens
        logprobs = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
        own = logprobs.gather(-1, ids[0, 1:, None])[:, 0]
        (-(weights[1:] * own).sum()).backward()
    return sum(float(p.grad.square().sum()) for p in model.parameters()) ** 0.5
