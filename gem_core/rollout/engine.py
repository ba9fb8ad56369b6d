"""Engine: plays tasks with a policy and streams the episodes as they finish.

Episodes advance independently. An error in an environment or a policy fails only its own episode
(`Episode.failure`), after its retries. Every task yields exactly one episode.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from typing import Any, Literal

from gem_core.arguments import whole_number
from gem_core.env.base import Env
from gem_core.env.wrapper_stack import parse_wrappers
from gem_core.errors import ConfigError
from gem_core.plugins.events import send_event
from gem_core.plugins.manager import load_plugins
from gem_core.policies.base import ChatPolicy, Player, Policy, warn_if_cut
from gem_core.rollout.env_pool import EnvPool
from gem_core.rollout.episode_runner import EpisodeRunner
from gem_core.rollout.interrupt import SECONDS_TO_CANCEL, Interrupted, run_sync
from gem_core.rollout.limits import Limits
from gem_core.rollout.renderer import Renderer
from gem_core.rollout.step_threads import StepThreads
from gem_core.types import Episode, Sampling, Task

__all__ = ["Interrupted", "Rollout", "run_batch", "run_episode", "run_sync", "tasks_for"]

AnyPolicy = Policy | ChatPolicy | Player

_NO_POLICY = (
    "this rollout has no policy; "
    "pass one to Rollout(policy, ...) or to each episode(task, policy=...)"
)


class Rollout:
    """An engine: one policy, one renderer, one set of limits, any number of tasks."""

    def __init__(
        self,
        policy: AnyPolicy | None = None,
        renderer: Renderer | None = None,
        *,
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        concurrency: int = 64,
        make_env: Callable[[Task], Env] | None = None,
        policy_errors: Literal["fail", "raise"] = "fail",
    ) -> None:
        """`policy`: optional if each call of `episode` passes one.

        `renderer`: required for a policy that samples ids. `make_env`: makes environments that
        are not registered. `policy_errors`: whether an exception of the policy fails its episode
        or is raised and ends the rollout, as trainers want for their own engine. A `PolicyError`
        about one generation always fails only the episode.
        """
        if policy_errors not in ("fail", "raise"):
            raise ConfigError(f"policy_errors must be 'fail' or 'raise', got {policy_errors!r}")
        self.policy_errors = policy_errors
        self.policy, self.renderer, self.concurrency = None, None, 64
        self.sampling, self.limits = Sampling(), Limits()
        self.threads = StepThreads(concurrency)
        self.pool = EnvPool(self.threads, make_env)
        self.configure(policy, renderer, sampling=sampling, limits=limits, concurrency=concurrency)
        self._running: dict[asyncio.Task[Episode], asyncio.Queue[asyncio.Task[Episode]]] = {}
        """The episodes of all streams, with the queue of ended episodes of each one's stream."""
        # Reentrant: a signal handler may call `stop` on the thread that holds it.
        self._lock = threading.RLock()
        self._busy = 0
        """How many batches and streams are running."""
        self._single = 0
        """How many calls of `episode` are running."""
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the running stream."""
        self._thread = 0
        """The thread of `_loop`."""
        load_plugins()

    policy: AnyPolicy | None
    renderer: Renderer | None
    sampling: Sampling
    limits: Limits
    concurrency: int

    def configure(
        self,
        policy: AnyPolicy | None = None,
        renderer: Renderer | None = None,
        *,
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        concurrency: int | None = None,
    ) -> None:
        """Change settings between batches, such as between a trainer's steps; keep environments."""
        changed = policy is not None or sampling is not None
        policy = self.policy if policy is None else policy
        renderer = self.renderer if renderer is None else renderer
        if policy is not None:
            _check_policy(policy, renderer)
        if concurrency is None:
            concurrency = self.concurrency
        self.concurrency = self.threads.size = whole_number("concurrency", concurrency, 1)
        self.policy, self.renderer = policy, renderer
        self.sampling = self.sampling if sampling is None else sampling
        self.limits = self.limits if limits is None else limits
        if changed and isinstance(policy, Policy):
            warn_if_cut(self.sampling)

    def runner(self, task: Task) -> EpisodeRunner:
        """Create the runner of a task; override it to vary policy or settings between tasks."""
        if self.policy is None:
            raise ConfigError(_NO_POLICY)
        return EpisodeRunner(
            task, self.policy, self.renderer, self.sampling, self.limits, self.pool
        )

    async def episode(
        self,
        task: Task,
        *,
        policy: AnyPolicy | None = None,
        renderer: Renderer | None = None,
        sampling: Sampling | None = None,
        limits: Limits | None = None,
    ) -> Episode:
        """Play one task; arguments override the rollout's own policy and settings.

        For trainers that request episodes one by one. Any number of calls may run on one event
        loop; they share the environments, and each has a thread for blocking steps. To end one,
        cancel the task that awaits it: `stop` ends only batches and streams.
        """
        policy = self.policy if policy is None else policy
        if policy is None:
            raise ConfigError(_NO_POLICY)
        renderer = self.renderer if renderer is None else renderer
        _check_policy(policy, renderer)
        runner = EpisodeRunner(
            task,
            policy,
            renderer,
            self.sampling if sampling is None else sampling,
            self.limits if limits is None else limits,
            self.pool,
        )
        self._single += 1
        self.threads.size = max(self.threads.size, self._single)
        try:
            episode = await runner.run()
        finally:
            self._single -= 1
        self._raise_engine_error(runner)
        return episode

    async def stream(self, tasks: Iterable[Task]) -> AsyncGenerator[Episode, None]:
        """Play `concurrency` tasks at a time and yield each episode when it ends.

        Tasks are drawn when they are needed, and no longer after `stop`.
        """
        waiting = iter(tasks)
        running: dict[asyncio.Task[Episode], EpisodeRunner] = {}
        # Not asyncio.wait(running), which visits every running episode each time one ends.
        ended: asyncio.Queue[asyncio.Task[Episode]] = asyncio.Queue()
        with self._under_way(asyncio.get_running_loop()):
            try:
                while True:
                    while (
                        len(running) < self.concurrency
                        and not self._stopping
                        and (task := next(waiting, None)) is not None
                    ):
                        runner = self.runner(task)
                        future = asyncio.ensure_future(runner.run())
                        future.add_done_callback(ended.put_nowait)
                        running[future] = runner
                        self._running[future] = ended
                    self._set_live(len(running))
                    if not running:
                        return
                    done = await ended.get()
                    if done not in running:  # abandoned before
                        continue
                    runner = running.pop(done)
                    self._running.pop(done, None)
                    self._raise_engine_error(runner)
                    cut = done.cancelled() or not done.done()
                    yield runner.cut_short() if cut else done.result()
            finally:
                for unfinished in running:
                    self._running.pop(unfinished, None)
                    unfinished.cancel()
                if running:
                    await asyncio.wait(running, timeout=SECONDS_TO_CANCEL)
                await self.pool.rest()

    async def batch(
        self,
        tasks: Iterable[Task],
        on_episode: Callable[[Episode], None] | None = None,
        *,
        evaluation: bool = False,
    ) -> list[Episode]:
        """Play tasks and return their episodes in order; call `on_episode` as each one ends.

        Plugins get the event `batch_end`, unless the batch is an `evaluation`.
        """
        with self._under_way():
            listed = [replace(task, index=i) for i, task in enumerate(tasks)]
            episodes: dict[int, Episode] = {}
            async with aclosing(self.stream(listed)) as finished:
                async for episode in finished:
                    episodes[episode.index] = episode
                    if on_episode is not None:
                        on_episode(episode)
        ordered = [
            episodes[i] if i in episodes else self.runner(task).cut_short()
            for i, task in enumerate(listed)
        ]
        if not evaluation:
            send_event("batch_end", episodes=ordered)
        return ordered

    def run_batch(
        self,
        tasks: Iterable[Task],
        on_episode: Callable[[Episode], None] | None = None,
        *,
        evaluation: bool = False,
    ) -> list[Episode]:
        """Run `batch` from synchronous code. Ctrl-C raises `Interrupted` with the episodes."""
        interrupted = False

        def interrupt() -> None:
            nonlocal interrupted
            interrupted = True
            self.stop()

        with self._under_way():  # `stop` must work before the event loop runs
            batch = self.batch(tasks, on_episode, evaluation=evaluation)
            episodes = run_sync(batch, on_interrupt=interrupt)
        if interrupted:
            raise Interrupted(episodes)
        return episodes

    def close(self) -> None:
        """Close the environments that batches share."""
        self.pool.close()

    def __enter__(self) -> Rollout:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stop(self) -> None:
        """End the running batches and streams; do nothing if there are none.

        Unfinished episodes come back as cancelled, also those of a batch that have not begun. Any
        thread may call this.
        """
        with self._lock:
            if not self._busy:
                return
            self._stopping = True  # also for a batch whose stream has not begun yet
            if self._loop is None:
                return
            if threading.get_ident() != self._thread:
                with suppress(RuntimeError):  # the loop is closed: nothing is running
                    self._loop.call_soon_threadsafe(self._cancel_running)
                return
        self._cancel_running()

    def _raise_engine_error(self, runner: EpisodeRunner) -> None:
        if self.policy_errors == "raise" and runner.engine_error is not None:
            raise runner.engine_error

    def _cancel_running(self) -> None:
        if self._stopping:  # else the batch to stop has ended meanwhile
            for future in self._running:
                future.cancel()
            abandon = dict(self._running)
            asyncio.get_running_loop().call_later(SECONDS_TO_CANCEL, _abandon, abandon)

    @contextmanager
    def _under_way(self, loop: asyncio.AbstractEventLoop | None = None) -> Iterator[None]:
        """Count a running batch or stream, which `stop` ends; `loop` plays it, if known."""
        with self._lock:
            self._busy += 1
            if loop is not None:
                self._loop, self._thread = loop, threading.get_ident()
        try:
            yield
        finally:
            with self._lock:
                self._busy -= 1
                if not self._busy:  # `stop` must not affect later batches
                    self._stopping, self._loop = False, None

    def _set_live(self, episodes: int) -> None:
        set_live = getattr(self.policy, "set_live", None)
        if set_live is not None:
            set_live(episodes)


def _abandon(futures: dict[asyncio.Task[Episode], asyncio.Queue[asyncio.Task[Episode]]]) -> None:
    """End the cancelled episodes whose environment ignores the cancellation."""
    for future, ended in futures.items():
        if not future.done():
            ended.put_nowait(future)


def _check_policy(policy: Any, renderer: Renderer | None) -> None:
    if not isinstance(policy, (Policy, ChatPolicy, Player)):
        raise ConfigError(
            f"{type(policy).__name__} is not a policy: it has neither generate(), chat() nor act()"
        )
    chat = getattr(policy, "chat", None)
    # a model of transformers, or a client of openai
    if hasattr(policy, "generation_config") or not (chat is None or callable(chat)):
        raise ConfigError(
            f"{type(policy).__name__} is not a policy; wrap a model in TransformersPolicy, and a "
            "hosted model in gem_eval's OpenAIChatPolicy"
        )
    if isinstance(policy, Policy) and renderer is None:
        raise ConfigError(
            "a policy that samples token ids needs a renderer: Rollout(policy, Renderer(tokenizer))"
        )
    turn_end = renderer.turn_end if renderer is not None and renderer.chat else None
    if turn_end is not None and hasattr(policy, "stop_at"):  # it chooses where a turn ends
        policy.stop_at(turn_end)


def tasks_for(
    env_id: str,
    seeds: Iterable[int],
    *,
    samples: int = 1,
    wrappers: Sequence[Any] | str = (),
    options: Mapping[str, Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
) -> list[Task]:
    """Create `samples` tasks per seed; the tasks of one seed are adjacent and form a group."""
    return [
        Task(
            env_id,
            seed,
            dict(options or {}),
            tuple(parse_wrappers(wrappers)),
            dict(env_kwargs or {}),
            index,
        )
        for index, seed in enumerate(seed for seed in seeds for _ in range(samples))
    ]


def run_episode(
    env: str | Env,
    policy: AnyPolicy,
    renderer: Renderer | None = None,
    *,
    seed: int | None = None,
    options: Mapping[str, Any] | None = None,
    wrappers: Sequence[Any] | str = (),
    sampling: Sampling | None = None,
    limits: Limits | None = None,
) -> Episode:
    """Play one episode; `env` is an environment or its id."""
    if isinstance(env, Env):
        if wrappers:
            raise ConfigError(
                "wrapper names need an environment id; wrap an environment object yourself"
            )
        env_id = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        task = Task(env_id, seed, dict(options or {}))
        engine = Rollout(
            policy,
            renderer,
            sampling=sampling,
            limits=limits,
            concurrency=1,
            make_env=lambda _: env,
        )
        engine.pool.lent = True
    else:
        task = Task(env, seed, dict(options or {}), tuple(parse_wrappers(wrappers)))
        engine = Rollout(policy, renderer, sampling=sampling, limits=limits, concurrency=1)
    with engine:
        return engine.run_batch([task])[0]


def run_batch(
    tasks: Iterable[Task],
    policy: AnyPolicy,
    renderer: Renderer | None = None,
    *,
    sampling: Sampling | None = None,
    limits: Limits | None = None,
    concurrency: int = 64,
    on_episode: Callable[[Episode], None] | None = None,
) -> list[Episode]:
    """Play tasks and return their episodes in the order of the tasks."""
    with Rollout(
        policy, renderer, sampling=sampling, limits=limits, concurrency=concurrency
    ) as engine:
        return engine.run_batch(tasks, on_episode)
