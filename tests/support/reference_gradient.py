"""The gradients of a run, computed from its record without a trainer."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from gem_core.policies.models import load_model
from gem_core.records.file import read_episodes
from gem_core.training.sequences import token_sequences
from gem_core.types import Episode

__all__ = ["gradient_norms"]


def gradient_norms(
    folder: Path,
    *,
    model: str = "tiny",
    updates: int | None = None,
    learning_rate: float = 2e-3,
    weight_decay: float = 0.0,
) -> list[float]:
    """Return the norm of each update's gradient, in which every trained token counts equally.

    `folder` has the record of a run with one optimizer step per update. The weights of an update
    come from steps of AdamW with the gradients of the updates before it.
    """
    policy, _ = load_model(model)
    adam = torch.optim.AdamW(policy.parameters(), learning_rate, weight_decay=weight_decay)
    batches = defaultdict[int, list[Episode]](list)
    for episode in read_episodes(folder / "episodes.jsonl"):
        if "update" in episode.final_info:
            batches[episode.final_info["update"]].append(episode)
    norms = []
    for _, episodes in sorted(batches.items())[:updates]:
        adam.zero_grad()
        _add_gradient(policy, episodes)
        norms.append(float(torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)))
        adam.step()
    return norms


def _add_gradient(model: Any, episodes: list[Episode]) -> None:
    trained = [(s, e.final_info["advantages"]) for e in episodes for s in token_sequences(e)]
    tokens = sum(sum(sequence.mask) for sequence, _ in trained)
    for sequence, advantages in trained:
        ids, mask = torch.tensor([sequence.ids]), torch.tensor(sequence.mask)
        weights = torch.tensor(sequence.broadcast([a or 0.0 for a in advantages])) * mask / tokens
        logprobs = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
        own = logprobs.gather(-1, ids[0, 1:, None])[:, 0]
        (-(weights[1:] * own).sum()).backward()
