"""Evaluation run: play a plan into an episode record, skipping episodes that it already holds.

The record is append-only and each finished episode is one write (`gem_core.records.file`), so
Ctrl-C, `kill -9` and a power cut only lose running episodes. A failed episode (a server was
unreachable, an environment raised an error) is recorded and counted, and the next run plays it
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

from gem_core.env.base import Env
from gem_core.errors import ConfigError
from gem_core.policies.base import ChatPolicy, Player, Policy
from gem_core.policies.players import RandomPlayer
from gem_core.records.file import RecordWriter, read_episodes, read_header
from gem_core.rollout.engine import Interrupted, Rollout, run_sync
from gem_core.rollout.episode_runner import EpisodeRunner
from gem_core.rollout.limits import Limits
from gem_core.rollout.renderer import Renderer
from gem_core.types import Episode, StopReason, Task
from gem_eval.evaluation.give_up import ConsecutiveFailures
from gem_eval.evaluation.plan import Plan

__all__ = ["evaluate", "results"]

OnEpisode = Callable[[Episode], None]


def evaluate(
    plan: Plan,
    policy: Policy | ChatPolicy | Player,
    path: str | Path,
    *,
    renderer: Renderer | None = None,
    limits: Limits | None = None,
    concurrency: int = 16,
    overwrite: bool = False,
    give_up: int | None = 20,
    on_begin: Callable[[Sequence[Episode]], None] | None = None,
    on_episode: OnEpisode | None = None,
) -> list[Episode]:
    """Play the episodes of a plan that are not in the record at `path`; return all in plan order.

    Ctrl-C raises `Interrupted`; the same call resumes the run. `give_up`: end the run after this
    many consecutive errors of the policy, or of one environment. `on_begin` receives the episodes
    that the record already holds. If `limits` and the plan both limit the turns or the context, the
    smaller limit holds.
    """
    path = Path(path)
    history, template_kwargs = (
        ("append", {}) if renderer is None else (renderer.mode, renderer.template_kwargs)
    )
    plan = replace(plan, history=history, template_kwargs=template_kwargs)
    if path.exists() and not overwrite:
        plan.check_same(read_header(path)["meta"].get("plan", {}), str(path))
    with RecordWriter(path, meta={"plan": plan.as_json()}, overwrite=overwrite) as record:
        done = {e.index: e for e in results(path) if not e.failed}
        if on_begin is not None:
            on_begin(list(done.values()))
        missing = [task for task in plan.tasks() if task.index not in done]
        failures = ConsecutiveFailures(give_up, path)

        def write(episode: Episode) -> None:
            record.write(episode)
            if on_episode is not None:
                on_episode(episode)
            failures.check(episode)

        limits = limits or Limits()
        limits = replace(
            limits,
            max_turns=_smaller(plan.max_turns, limits.max_turns),
            max_context=_smaller(plan.max_context, limits.max_context),
        )
        engine = _Engine(plan, policy, renderer, limits, concurrency)
        with engine:
            finished = engine.finish(missing, write)
    by_index = {e.index: e for e in results(path)}
    if not finished:
        raise Interrupted([by_index[i] for i in sorted(by_index)])
    return [by_index[i] for i in range(plan.size)]


def results(path: str | Path) -> list[Episode]:
    """Read the episodes of a record.

    The episodes of a plan come in plan order; a retried episode replaces its failed attempt.
    """
    if "plan" not in read_header(path)["meta"]:
        return list(read_episodes(path))
    by_index: dict[int, Episode] = {}
    for episode in read_episodes(path):
        if episode.index not in by_index or by_index[episode.index].failed:
            by_index[episode.index] = episode
    return [by_index[i] for i in sorted(by_index)]


def _smaller(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


class _Engine(Rollout):
    """Rollout in which the random player draws different actions for each sample of a seed."""

    def __init__(
        self,
        plan: Plan,
        policy: Policy | ChatPolicy | Player,
        renderer: Renderer | None,
        limits: Limits,
        concurrency: int,
    ) -> None:
        if isinstance(policy, Policy) and renderer is None:
            raise ConfigError(
                "a policy that samples token ids needs a renderer; "
                "pass evaluate(..., renderer=Renderer(tokenizer))"
            )
        sampling = replace(plan.sampling, seed=plan.sampling_seed)
        super().__init__(
            policy, renderer, sampling=sampling, limits=limits, concurrency=concurrency
        )
        self.plan = plan

    def runner(self, task: Task) -> EpisodeRunner:
        runner = super().runner(task)
        if isinstance(runner.policy, RandomPlayer):
            runner.policy = _RandomSample(self.plan.sample_of(task.index))
        return runner

    def finish(self, tasks: Sequence[Task], write: OnEpisode) -> bool:
        """Play tasks and pass each finished episode to `write`; return False after Ctrl-C."""
        interrupted = False

        def interrupt() -> None:
            nonlocal interrupted
            interrupted = True
            self.stop()

        async def play_all() -> None:
            async with aclosing(self.stream(tasks)) as ended:
                async for episode in ended:
                    if episode.stop is not StopReason.CANCELLED:
                        write(episode)
                        await asyncio.sleep(0)

        with self._under_way():  # also covers the time before the event loop runs
            run_sync(play_all(), on_interrupt=interrupt)
        return not interrupted


class _RandomSample:
    """Random player that varies with the sample.

    `sample_action` alone draws the same actions for every sample of a seed.
    """

    def __init__(self, sample: int) -> None:
        self._sample = sample

    def act(self, env: Env, observation: str) -> str:
        """Return a random legal action."""
        if self._sample and env.unwrapped.turn == 0:
            env.unwrapped.vary_actions(self._sample)
        return env.sample_action()
