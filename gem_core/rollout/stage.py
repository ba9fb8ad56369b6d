"""Stage: where episodes are played one by one, for a trainer that asks for each on its own and has many under way.

`Rollout` plays batches and knows how many episodes are live; here the trainer does, and all of them share what costs to make:
environments, threads, record files. Everything on a stage runs on one event loop.
"""

from __future__ import annotations

from uuid import uuid4

from gem_core.plugins.manager import load_plugins
from gem_core.policies.base import Policy
from gem_core.records.file import RecordWriter, record_of
from gem_core.rollout.env_pool import EnvPool
from gem_core.rollout.episode_runner import EpisodeRunner
from gem_core.rollout.limits import Limits
from gem_core.rollout.renderer import Renderer
from gem_core.rollout.step_threads import StepThreads
from gem_core.types import Episode, Sampling, Task

__all__ = ["Stage"]


class Stage:
    """Environments, kept from episode to episode, a thread for every live one, and records."""

    def __init__(self) -> None:
        load_plugins()
        self._threads = StepThreads(1)
        self._pool = EnvPool(self._threads)
        self._live = 0
        self._writers: dict[str, RecordWriter] = {}
        self._mark = uuid4().hex[:8]  # not a process id, which another machine may have as well

    async def play(self, task: Task, policy: Policy, renderer: Renderer, sampling: Sampling, limits: Limits) -> Episode:
        """Plays one episode to its end; a slow step holds up none but its own."""
        self._live += 1
        self._threads.size = max(self._threads.size, self._live)
        try:
            return await EpisodeRunner(task, policy, renderer, sampling, limits, self._pool).run()
        finally:
            self._live -= 1

    def record(self, path: str, episode: Episode) -> None:
        """Writes an episode to a record; `{rank}` in its path becomes a mark of this stage's own. A path without it serves one
        stage."""
        if path not in self._writers:
            self._writers[path] = record_of(path, self._mark)
        self._writers[path].write(episode)
