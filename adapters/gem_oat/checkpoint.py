"""Checkpoint: what a resumed run needs besides oat's checkpoint of the policy.

These are the number of updates, which decides the horizon, the episodes that were trained, and the
critic.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch.distributed

from gem_core.adapter_kit.progress import changed_settings
from gem_core.adapter_kit.settings import reject
from gem_core.errors import ConfigError

__all__ = ["Progress", "resume", "save"]

_CRITIC = "_critic"
"""The folder of the critic's checkpoints: that of the policy's with this suffix."""


@dataclass
class Progress:
    """The numbers of the trained episodes of one actor.

    Episodes end in another order than they begin. A resumed run plays the seeds of all episodes
    that were not trained, also of those that were unfinished when the checkpoint was saved.
    """

    first_missing: int = 0
    """All episodes below this number were trained."""
    later: set[int] = field(default_factory=set)
    """The trained episodes above it."""

    def add(self, numbers: Iterable[int]) -> None:
        """Add trained episodes."""
        self.later.update(numbers)
        while self.first_missing in self.later:
            self.later.remove(self.first_missing)
            self.first_missing += 1

    def __contains__(self, number: int) -> bool:
        return number < self.first_missing or number in self.later


def save(learner: Any, save_as_oat: Any, model: Any, folder: str, **settings: Any) -> None:
    """Save a checkpoint as oat does, with the episodes that were trained, and the critic's."""
    trained: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(trained, learner.gem_trained)
    plain = [(progress.first_missing, sorted(progress.later)) for progress in trained]
    state = {
        "gem": {"updates": learner.gem_finished, "trained": plain, "same": _same(learner.args)}
    }
    save_as_oat(model, folder, client_state=state, **settings)
    if learner.critic is not None:
        save_as_oat(learner.critic, folder + _CRITIC, **settings)


def resume(learner: Any) -> None:
    """Load a checkpoint, and continue after its updates, with the episodes it has not trained."""
    args, load = learner.args, learner.strategy.load_ckpt
    _, saved = load(learner.model.model, args.resume_dir, args.resume_tag)
    state, ranks = saved.get("gem"), torch.distributed.get_world_size()
    where = f"the checkpoint in resume_dir={args.resume_dir!r}"
    if state is None or len(state["trained"]) != ranks:
        given = "no state of gem" if state is None else f"{len(state['trained'])} learner(s)"
        raise ConfigError(
            f"{where} has {given}, but this run has {ranks} learner(s) of gem_oat; resume with the "
            "settings of the run that saved it"
        )
    left = args.max_train - state["updates"] * args.rollout_batch_size
    reject(
        [
            *changed_settings(where, state.get("same", {}), _same(args)),
            (
                left < args.rollout_batch_size,
                f"{where} has {state['updates']} updates, and max_train={args.max_train} "
                "transitions are not more; raise max_train, the total",
            ),
        ]
    )
    if learner.critic is not None:
        load(learner.critic, args.resume_dir + _CRITIC, args.resume_tag)
    learner.gem_updates = state["updates"]
    first_missing, later = state["trained"][torch.distributed.get_rank()]
    learner.gem_trained = Progress(first_missing, set(later))
    learner.make_prompts(learner.strategy, left)
    args.resume_dir = ""  # oat would load it again
    if learner.gem_actor is not None:
        learner.gem_actor.resume(learner.gem_updates, learner.gem_trained)
        learner.sync_params_to_actors()  # they have the weights of `pretrain`


def _same(args: Any) -> dict[str, Any]:
    """Return the settings that decide which task has which episode number."""
    config = args.gem
    return {
        "env_id": config.env_id,
        "seeds": list(config.train_seeds),
        "samples": config.samples,
        "seed": args.seed,
        "rollout_batch_size": args.rollout_batch_size,
    }
