"""Asynchronous training for `algorithms_training.Trainer`: the rollouts of `uneven.py`.

Episodes stay in flight during an update. Their environments go on, and their next turns wait for
the new weights. So a turn has one version of the weights, and an episode may have several. The loss
has PPO's clipped ratio between the trained weights and the logprobs recorded at sampling.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from statistics import fmean
from typing import Any

from algorithms_model import Optimizer
from algorithms_plan import HELD_OUT, Run
from algorithms_training import Clock, Trainer, summary

from gem_core import Episode, Rollout, advantages, tasks_for
from gem_core.errors import ConfigError
from gem_core.types import Task

__all__ = ["lags", "train_async"]


async def train_async(trainer: Trainer, run: Run) -> dict[str, Any]:
    """Train and evaluate one run; return the content of its result file."""
    batches = {"one-off": _one_off, "stream": _stream}
    if run.rollout not in batches:
        raise ConfigError(f"rollout must be sync, one-off or stream; got {run.rollout!r}")
    in_flight = run.episodes * (2 if run.rollout == "one-off" else 1)
    if in_flight > trainer.slots:
        raise ConfigError(
            f"{run.name} has {in_flight} episodes in flight and {trainer.slots} slots; "
            f"set --slots {in_flight}"
        )
    if run.algorithm == "ppo" or run.samples > 1 or run.horizon or run.mixture:
        raise ConfigError(
            "asynchronous runs support neither critics nor groups, horizons and mixtures; "
            f"{run.name} has one"
        )
    trainer.restore(run.seed)
    trainer.configure(run.setting)
    if run.rollout == "stream":
        trainer.engine.configure(concurrency=run.episodes)
    clock = Clock()
    began, busy, tokens = time.time(), trainer.policy.seconds, trainer.policy.tokens
    curve = await _train(trainer, run, batches[run.rollout], clock)
    seconds = time.time() - began
    clock.generation = trainer.policy.seconds - busy
    clock.tokens = trainer.policy.tokens - tokens
    clock.environment = max(0.0, seconds - clock.generation - clock.update)
    return await trainer.result(run, curve, clock, seconds)


async def _train(trainer: Trainer, run: Run, batches: Any, clock: Clock) -> list[dict[str, Any]]:
    policy, optimizer = trainer.policy, Optimizer(trainer.model, run.rate or 0.0)
    curve: list[dict[str, Any]] = []
    step_began = time.time()
    async with aclosing(batches(trainer.engine, _tasks(run), run.episodes)) as finished:
        async for batch in finished:
            await policy.pause()
            update_began = time.time()
            metrics = lags(batch, policy.weight_version)
            per_turn = advantages(batch, run.algorithm, gamma=run.gamma)
            update = trainer.update(batch, per_turn, optimizer, run.steps, corrected=True)
            metrics |= update._asdict()
            policy.refresh()
            policy.resume()
            clock.update += time.time() - update_began
            curve.append({**summary(batch), **metrics, "seconds": time.time() - step_began})
            step_began = time.time()
            if len(curve) == run.updates:
                break
    return curve


def _tasks(run: Run) -> Iterator[Task]:
    """Draw tasks without end; the seeds are those of a synchronous run."""
    rng, setting = random.Random(run.seed), run.setting
    while True:
        seeds = [rng.randrange(HELD_OUT)]
        yield from tasks_for(setting.env, seeds, wrappers=setting.tools, env_kwargs=setting.kwargs)


async def _one_off(
    engine: Rollout, tasks: Iterator[Task], size: int
) -> AsyncGenerator[list[Episode], None]:
    """Keep two batches in flight, and yield each when all of its episodes have ended."""
    flying: deque[asyncio.Task[list[Episode]]] = deque()
    try:
        while True:
            while len(flying) < 2:
                batch = [next(tasks) for _ in range(size)]
                flying.append(asyncio.create_task(engine.batch(batch)))
            yield await flying.popleft()
    finally:
        for task in flying:
            task.cancel()
        await asyncio.gather(*flying, return_exceptions=True)


async def _stream(
    engine: Rollout, tasks: Iterator[Task], size: int
) -> AsyncGenerator[list[Episode], None]:
    """Keep `size` episodes in flight, and yield the first `size` that end."""
    ended: list[Episode] = []
    async with aclosing(engine.stream(tasks)) as stream:
        async for episode in stream:
            ended.append(episode)
            if len(ended) == size:
                yield ended
                ended = []


def lags(batch: Sequence[Episode], version: int) -> dict[str, float]:
    """Return how many updates old the weights of the turns are: mean and maximum."""
    ages = [version - t.versions[0] for e in batch for t in e.turns if t.versions is not None]
    if not ages:
        return {"lag": 0.0, "lag_max": 0}
    return {"lag": fmean(ages), "lag_max": max(ages)}
