"""SFT warm-up: a few supervised updates on a baseline player's actions before RL.

    warm_up(model, tokenizer, "game:GuessTheNumber-v0-easy", updates=10)

It teaches a small model the environment's action format, which RL alone may never discover. The
player `random` teaches the format only; `expert` also teaches to play.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from gem_core.errors import ConfigError
from gem_core.policies.base import Player
from gem_core.policies.players import player_named
from gem_core.rollout.engine import Rollout, tasks_for
from gem_core.rollout.renderer import Renderer
from gem_core.training.demonstrations import tokenised
from gem_core.training.sequences import TokenSequence, token_sequences

__all__ = ["warm_up"]

_FIRST_SEED = 2**30
"""Far from the seeds of training and evaluation."""


def warm_up(
    model: Any,
    tokenizer: Any,
    env_id: str,
    *,
    updates: int = 10,
    player: Player | str = "random",
    wrappers: Sequence[Any] | str = (),
    env_kwargs: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    renderer: Renderer | None = None,
    episodes: int | None = None,
    batch_size: int = 32,
    learning_rate: float = 1e-4,
    max_grad_norm: float = 1.0,
    seed: int = 0,
) -> float:
    """Train `model` in place on episodes of `player` and return the last loss.

    `player`: `random`, `expert`, or an object with `act`. `episodes`: how many to play, reused in
    every epoch; None plays enough to use each once. `renderer`: for other prompts than those of
    `Renderer(tokenizer)`, as in `config.renderer(tokenizer)`. The other arguments are those of the
    episodes (`wrappers`, `env_kwargs`, `options`, as in training) and of AdamW.
    """
    import torch

    for name, number in (("updates", updates), ("batch_size", batch_size), ("episodes", episodes)):
        if number is not None and number < 1:
            raise ConfigError(f"{name} of an SFT warm-up must be >= 1, got {number!r}")
    if isinstance(player, str):
        player = player_named(player)
    count = batch_size * updates if episodes is None else episodes
    more: dict[str, Any] = {"wrappers": wrappers, "env_kwargs": env_kwargs, "options": options}
    tasks = tasks_for(env_id, range(_FIRST_SEED, _FIRST_SEED + count), **more)
    with Rollout(player) as rollout:
        played = rollout.run_batch(tasks)
    failed = next((episode for episode in played if episode.failed), None)
    if failed is not None:
        raise ConfigError(
            f"an SFT warm-up needs a player that can play the environment; {failed!r}"
        )
    renderer = renderer or Renderer(tokenizer)
    sequences = [
        sequence for episode in played for sequence in token_sequences(tokenised(episode, renderer))
    ]
    if not sequences:
        raise ConfigError(f"the episodes of {env_id} have no tokens to train on")
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
    was_training, loss = model.training, torch.zeros(())
    model.train()
    rng, waiting = random.Random(seed), list[TokenSequence]()
    for _ in range(updates):
        while len(waiting) < batch_size:
            rng.shuffle(sequences)
            waiting += sequences
        batch, waiting = waiting[:batch_size], waiting[batch_size:]
        loss = _loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
        optimizer.step()
    model.train(was_training)
    return float(loss.detach())


def _loss(model: Any, sequences: Sequence[TokenSequence]) -> Any:
    import torch

    width = max(len(sequence.ids) for sequence in sequences)
    padded = [
        ([*s.ids, *[0] * (width - len(s.ids))], [*s.mask, *[0] * (width - len(s.ids))])
        for s in sequences
    ]
    ids_B_T = torch.tensor([ids for ids, _ in padded], device=model.device)
    mask_B_T = torch.tensor([mask for _, mask in padded], device=model.device).bool()
    # No attention mask: causal attention does not see the padding on the right.
    logits_B_T_V = model(input_ids=ids_B_T).logits[:, :-1]
    return torch.nn.functional.cross_entropy(
        logits_B_T_V[mask_B_T[:, 1:]].float(), ids_B_T[:, 1:][mask_B_T[:, 1:]]
    )
