"""Trainer rollout: the engine as adapters use it, and one trial step before training."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from gem_core.env.base import Env
from gem_core.errors import EnvError
from gem_core.plugins.entry_points import load_entry_point
from gem_core.rollout.engine import Rollout
from gem_core.rollout.interrupt import run_sync
from gem_core.training.config import TrainingConfig
from gem_core.types import Episode, Task

__all__ = ["TrainerRollout", "try_environment"]

_HOSTS = "gem_execution.ray_hosts:EnvHosts"


class TrainerRollout(Rollout):
    """A rollout whose environments run where `GemConfig.execution` puts them.

    An error of the generation engine ends the run: continuing would train on empty batches.
    """

    def __init__(self, config: TrainingConfig, **settings: Any) -> None:
        self._hosts: Any = None
        make_env: Callable[[Task], Env] | None = None
        if config.execution == "ray":
            start = load_entry_point(_HOSTS, "execution='ray'", "ray")
            self._hosts = start(config.hosts or 2)
            make_env = self._hosts.make_env
        super().__init__(make_env=make_env, policy_errors="raise", **settings)

    def close(self) -> None:
        """Close the environments, and the Ray actors that held them."""
        super().close()
        if self._hosts is not None:
            self._hosts.close()


class _OneAction:
    """Plays a legal action if the environment can draw one, otherwise its example action."""

    def act(self, env: Env, observation: str) -> str:
        inner = env.unwrapped
        return env.sample_action() if inner.plays_at_random else inner.action_example or ""


async def _play(rollout: Rollout, task: Task) -> list[Episode]:
    """Play one task without the plugin event of a batch: this episode is not trained."""
    async with aclosing(rollout.stream([task])) as episodes:
        return [episode async for episode in episodes]


def try_environment(config: TrainingConfig) -> None:
    """Make the environment, reset it and take one step; raise `EnvError` if that fails.

    Adapters call it before a model is loaded. Otherwise a missing package or a reward that is not
    a number would show after minutes, as episodes that fail. Environments on Ray hosts are not
    tried: this machine may lack what they need.
    """
    if config.execution == "ray":
        return
    task, limits = config.task(config.train_seeds[0]), replace(config.limits(0), max_turns=1)
    with Rollout(_OneAction(), limits=limits, concurrency=1) as rollout:
        (episode,) = run_sync(_play(rollout, task), rollout.stop)
    if episode.failure is not None:
        raise EnvError(
            f"the environment {config.env_id} failed with seed {task.seed} before training: "
            f"{episode.failure}. `gem-rl check {config.env_id}` plays it without a trainer"
            f"\n\n{episode.failure.traceback.rstrip()}"
        )
