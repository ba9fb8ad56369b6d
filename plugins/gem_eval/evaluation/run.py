"""Run: plays a plan into a record. What the record holds already is not played again, and nothing in it is lost.

The record is append-only and each finished episode is one write (`gem_core.records.file`): Ctrl-C, `kill -9` and a power cut
lose the episodes under way and nothing else. An episode that ended failed (a server that stayed away, an environment
that broke) is recorded, counted, and played again by the next run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

from gem_core.env.base import Env
from gem_core.errors import ConfigError, PolicyError
from gem_core.plugins.events import send_event
from gem_core.policies.base import ChatPolicy, Player, Policy
from gem_core.policies.players import RandomPlayer
from gem_core.records.file import RecordWriter, read_episodes, read_header
from gem_core.rollout.engine import Interrupted, Rollout, run_sync
from gem_core.rollout.episode_runner import EpisodeRunner
from gem_core.rollout.limits import Limits
from gem_core.rollout.renderer import Renderer
from gem_core.types import Episode, StopReason, Task
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
    """Plays what the record at `path` lacks of a plan, and returns the plan's episodes in its order.

    Ctrl-C raises `Interrupted`; the same call goes on from there. `give_up`: so many policy errors in a row, with nothing
    finished between them, end the run, since the next thousand would fail alike. `on_begin` is told what was there already.
    """
    path = Path(path)
    if path.exists() and not overwrite:
        plan.check_same(read_header(path)["meta"].get("plan", {}), str(path))
    with RecordWriter(path, meta={"plan": plan.as_json()}, overwrite=overwrite) as record:
        done = {e.index: e for e in results(path) if not e.failed}
        if on_begin is not None:
            on_begin(list(done.values()))
        left = [task for task in plan.tasks() if task.index not in done]
        failed = 0

        def keep(episode: Episode) -> None:
            nonlocal failed
            record.write(episode)
            failed = failed + 1 if episode.stop is StopReason.POLICY_ERROR else 0
            if on_episode is not None:
                on_episode(episode)
            if give_up is not None and failed >= give_up:
                raise PolicyError(
                    f"{failed} episodes in a row failed, the last with: {episode.failure}. What was finished is in {path}; "
                    "mend it, and the same command goes on from there"
                )

        limits = replace(limits or Limits(), max_turns=plan.max_turns)
        engine = _Engine(plan, policy, renderer, limits, concurrency)
        with engine:
            finished = engine.finish(left, keep)
    found = {e.index: e for e in results(path)}
    if not finished:
        raise Interrupted([found[i] for i in sorted(found)])
    episodes = [found[i] for i in range(plan.size)]
    send_event("batch_end", episodes=episodes)
    return episodes


def results(path: str | Path) -> list[Episode]:
    """The episodes of a record. In one that a plan was played into, an episode that was played again, since it had ended failed,
    counts once, and they stand in the plan's order."""
    if "plan" not in read_header(path)["meta"]:
        return list(read_episodes(path))
    found: dict[int, Episode] = {}
    for episode in read_episodes(path):
        if episode.index not in found or found[episode.index].failed:
            found[episode.index] = episode
    return [found[i] for i in sorted(found)]


class _Engine(Rollout):
    """A rollout in which each episode has chances of its own, that its number decides."""

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
                "a policy that samples token ids needs a renderer: evaluate(..., renderer=Renderer(tokenizer))"
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

    def finish(self, tasks: Sequence[Task], keep: OnEpisode) -> bool:
        """Plays tasks and hands over each episode that ended by itself. False where Ctrl-C cut it short."""
        interrupted = False

        def interrupt() -> None:
            nonlocal interrupted
            interrupted = True
            self.stop()

        async def play_all() -> None:
            async with aclosing(self.stream(tasks)) as ended:
                async for episode in ended:
                    if episode.stop is not StopReason.CANCELLED:
                        keep(episode)
                        await asyncio.sleep(0)

        with self._under_way():  # from now on, not only once its event loop runs
            run_sync(play_all(), on_interrupt=interrupt)
        return not interrupted


class _RandomSample:
    """A random player with chances of its own for each sample: `sample_action` draws the same ones for the same seed."""

    def __init__(self, sample: int) -> None:
        self._sample = sample

    def act(self, env: Env, observation: str) -> str:
        """A legal action chosen at random."""
        if self._sample and env.unwrapped.turn == 0:
            env.unwrapped.vary_actions(self._sample)
        return env.sample_action()
