"""Advantage: gem's estimators in place of RL2's compute_advantages, one number per token, and the trainer that puts them there.

RL2's trainer calls `compute_advantages` by the name it imported, on the rank that has the whole batch, and offers no hook; so
that name is replaced while it trains. So is `count_total`, by whose result the loss is divided: a batch of nothing but failed
episodes would make every weight NaN.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import RL2.trainer.ppo as rl2_ppo
import torch
import wandb

from gem_core.training.metrics import advantage_sizes
from gem_rl2.config import longest_row, prepare_config
from gem_rl2.convert import rows_of, spread
from gem_rl2.interface import replaced, which_rl2
from gem_rl2.rollout import GemRollout, Plays

if TYPE_CHECKING:
    from gem_rl2.config import GemConfig

__all__ = ["GemPPOTrainer", "gem_advantages", "put_advantages"]

_LOSSES = ("RL2.workers.actor", "RL2.workers.fsdp.actor", "RL2.workers.megatron.actor")


class GemPPOTrainer(rl2_ppo.PPOTrainer):  # type: ignore[misc]
    """RL2's PPOTrainer on the episodes of a spec, with per-turn advantages by the estimator the spec names."""

    def __init__(self, config: Any, spec: GemConfig) -> None:
        self.gem_spec = spec
        self._folder = tempfile.TemporaryDirectory(prefix="gem_rl2_")
        prepare_config(config, spec, self._folder.name)

        def rollout(rollout_config: Any) -> Any:
            return GemRollout(rollout_config, spec, longest_row(config))

        with replaced(rl2_ppo, "initialize_rollout" if which_rl2() == "main" else "Rollout", rollout):
            super().__init__(config)

    def train(self) -> Any:
        """RL2's own loop; in its main branch, a coroutine."""
        return self._train_async() if which_rl2() == "main" else self._train_sync()

    def run(self) -> None:
        """`train` to its end, whichever RL2 it is."""
        found = self.train()
        if inspect.iscoroutine(found):
            asyncio.run(found)

    def _train_sync(self) -> None:
        try:
            with gem_advantages(self.rollout.plays):
                super().train()
        finally:
            self._end()

    async def _train_async(self) -> None:
        try:
            try:
                with gem_advantages(self.rollout.plays):
                    await super().train()
            finally:  # on the event loop that awaited environments are bound to
                await self.rollout.plays.rest()
        finally:
            self._end()

    def _end(self) -> None:
        self.rollout.close()
        self._folder.cleanup()


@contextmanager
def gem_advantages(plays: Plays) -> Iterator[None]:
    """While it lasts, RL2's trainer credits the episodes of `plays` by gem's estimator."""

    def compute_advantages(config: Any, tensor_dict: dict[str, Any], cu_seqs: Any, step: int) -> None:
        put_advantages(plays, tensor_dict, cu_seqs, step)

    takes = "config tensor_dict cu_seqs step" if which_rl2() == "main" else "config raw_tensor_dict cu_seqs step"
    with ExitStack() as stack:
        stack.enter_context(replaced(rl2_ppo, "compute_advantages", compute_advantages, takes))
        for name in _LOSSES:
            if (module := sys.modules.get(name)) is not None:
                stack.enter_context(replaced(module, "count_total", _at_least_one(module.count_total)))
        yield


def put_advantages(plays: Plays, tensor_dict: dict[str, Any], cu_seqs: Any, step: int) -> None:
    """Writes `advantages`: statistics over the whole batch, which one rank holds; one number per token, 0 where untrained."""
    episodes = plays.ledger.take(tensor_dict, cu_seqs)
    per_turn = plays.spec.credit(episodes)
    found = torch.zeros(tensor_dict["states"].shape, dtype=torch.float32)
    for start, episode, numbers in zip(cu_seqs.tolist(), episodes, per_turn):
        for row, view in enumerate(rows_of(episode, plays.end_id), start):
            tokens = torch.tensor(spread(view, numbers), dtype=torch.float32)
            found[row, : len(tokens)] = tokens
    tensor_dict["advantages"] = found
    trained = advantage_sizes(episodes, per_turn)
    wandb.log({"gem/advantage_abs": sum(trained) / len(trained) if trained else 0.0}, step=step)


def _at_least_one(count_total: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        found = count_total(*args, **kwargs)
        return tuple(max(x, 1) for x in found) if isinstance(found, tuple) else max(found, 1)

    return counted
