"""Updates: watches RL2's actor and critic during an update, and writes the metrics file.

Inside `watched_updates`, three functions of each are replaced:

| RL2              | gem                                                                          |
|------------------|------------------------------------------------------------------------------|
| `count_total`    | at least 1: the loss divides by it, and without trained tokens 0 / 0 is NaN   |
| `optimizer_step` | skipped without trained tokens: momentum would still move the weights        |
| `rank0_log`      | keeps loss and gradient norm; after the last one, `UpdateLog` gets the update |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch.distributed as dist

from gem_core.adapter_kit.patching import patched
from gem_core.adapter_kit.update_log import UpdateLog
from gem_rl2.rollout import RolloutState

__all__ = ["Worker", "release_workers", "watched_updates"]

_LOGGED = {
    "loss": "actor/loss",
    "grad_norm": "actor/grad_norm",
    "critic_loss": "critic/loss",
    "critic_grad_norm": "critic/grad_norm",
}
"""Names in the metrics file, and RL2's names of the same numbers."""


class Worker(NamedTuple):
    """A module with one of RL2's losses."""

    module: Any
    owner: Any
    """The class of `optimizer_step`; None leaves it as it is."""
    count_total: str = "minibatches key device_mesh"
    """The parameter names of the module's `count_total`."""


def release_workers(state: RolloutState) -> list[Worker]:
    """Return RL2's actor and, if the estimator needs one, its critic."""
    import RL2.workers.actor as rl2_actor
    import RL2.workers.critic as rl2_critic

    workers = [Worker(rl2_actor, rl2_actor.Actor)]
    if state.config.needs_values:
        workers.append(Worker(rl2_critic, rl2_critic.Critic))
    return workers


@contextmanager
def watched_updates(state: RolloutState, workers: Sequence[Worker]) -> Iterator[None]:
    """Watch updates inside the block. The last of the workers ends an update."""
    log = UpdateLog.of(state.config, write=dist.get_rank() == 0)
    update = _Update(state, log)
    with ExitStack() as patches:
        for module, owner, parameters_of_count in workers:
            last = module is workers[-1].module
            for name, replacement, parameters in (
                ("count_total", update.counts(module.count_total), parameters_of_count),
                ("rank0_log", update.logs(module.rank0_log, last), "metrics step"),
            ):
                patches.enter_context(patched(module, name, replacement, parameters))
            if owner is not None:
                step = update.steps(owner.optimizer_step)
                patches.enter_context(patched(owner, "optimizer_step", step, "self"))
        yield


@dataclass
class _Update:
    """What is known of the current update."""

    state: RolloutState
    log: UpdateLog
    empty: bool = False
    """Whether the current optimizer step trains no token on any rank."""
    metrics: dict[str, float] = field(default_factory=dict)

    def counts(self, count_total: Callable[..., Any]) -> Callable[..., Any]:
        """Return `count_total` with a result of at least 1."""

        def count_at_least_one(*args: Any, **kwargs: Any) -> Any:
            total = count_total(*args, **kwargs)
            if not isinstance(total, tuple):
                return max(total, 1)
            self.empty = not total[0]
            return tuple(max(number, 1) for number in total)

        return count_at_least_one

    def steps(self, optimizer_step: Callable[[Any], float]) -> Callable[[Any], float]:
        """Return `optimizer_step` that does nothing without trained tokens."""

        def step(worker: Any) -> float:
            if not self.empty:
                return optimizer_step(worker)
            worker.optimizer.zero_grad()
            return 0.0

        return step

    def logs(self, rank0_log: Callable[..., None], last: bool) -> Callable[..., None]:
        """Return `rank0_log`, which RL2 calls on every rank, that also writes an update."""

        def log(metrics: Mapping[str, Sequence[float]], step: int) -> None:
            rank0_log(metrics, step)
            if dist.get_rank() == 0:
                self.metrics |= {
                    name: sum(metrics[key]) / len(metrics[key])
                    for name, key in _LOGGED.items()
                    if metrics.get(key)
                }
            if last:
                # every rank decides whether the run ends, from the metrics of the first
                shared = [self.state.metrics]
                dist.broadcast_object_list(shared, src=0)
                trained, self.metrics = {**self.metrics, **self.state.logprob_gap}, {}
                self.log.write(step - 1, shared[0], **trained)

        return log
