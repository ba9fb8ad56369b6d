"""Rollout: plays tasks with a policy and streams the episodes as they finish.

Episodes advance on their own: none waits for another. Whatever breaks in an environment or a policy ends its own episode,
as data (`Episode.failure`), after the retries it was granted. Every task comes back as exactly one episode.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from typing import Any, Literal, TypeVar

from gem_core.arguments import whole_number
from gem_core.env.base import Env
from gem_core.env.wrapper_stack import parse_wrappers
from gem_core.errors import ConfigError
from gem_core.plugins.events import send_event
from gem_core.plugins.manager import load_plugins
from gem_core.policies.base import ChatPolicy, Player, Policy, warn_if_cut
from gem_core.rollout.env_pool import EnvPool
from gem_core.rollout.episode_runner import EpisodeRunner
from gem_core.rollout.limits import Limits
from gem_core.rollout.renderer import Renderer
from gem_core.rollout.step_threads import StepThreads
from gem_core.types import Episode, Sampling, Task

__all__ = ["Interrupted", "Rollout", "run_batch", "run_episode", "tasks_for"]

T = TypeVar("T")


AnyPolicy = Policy | ChatPolicy | Player


class Interrupted(KeyboardInterrupt):
    """Raised on Ctrl-C by the sync front doors. `episodes` holds one for each task, those cut short as failed."""

    def __init__(self, episodes: Sequence[Episode]) -> None:
        super().__init__(
            f"interrupted with {sum(not e.failed for e in episodes)} of {len(episodes)} episodes finished"
        )
        self.episodes = list(episodes)


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
        """`policy`: may be left out if each `episode` is given one. `renderer`: needed for a policy that samples ids.
        `make_env`: makes environments that are not registered. `policy_errors`: an error of the policy fails its episode, or
        is raised and ends the rollout, which is what a trainer wants of its own engine. A `PolicyError` about one generation
        always fails the episode."""
        if policy_errors not in ("fail", "raise"):
            raise ConfigError(f"policy_errors must be 'fail' or 'raise'; given: {policy_errors!r}")
        self.policy_errors = policy_errors
        self.policy, self.renderer, self.sampling, self.limits, self.concurrency = (
            None,
            None,
            Sampling(),
            Limits(),
            64,
        )
        self.threads = StepThreads(concurrency)
        self.pool = EnvPool(self.threads, make_env)
        self.configure(policy, renderer, sampling=sampling, limits=limits, concurrency=concurrency)
        self._running: set[asyncio.Task[Episode]] = set()
        self._lock = (
            threading.RLock()
        )  # `stop` may break into its own thread, where a signal calls it
        self._busy = 0
        """Batches and streams under way: what there is to stop."""
        self._single = 0
        """Episodes under way that were asked for one by one."""
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop of the stream that plays, once it has begun."""
        self._thread = 0
        """Where the loop runs."""
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
        """Change settings between batches and keep the environments, as a trainer does from step to step."""
        changed = policy is not None or sampling is not None
        policy = self.policy if policy is None else policy
        renderer = self.renderer if renderer is None else renderer
        if policy is not None:
            _check_policy(policy, renderer)
        size = (
            self.concurrency if concurrency is None else whole_number("concurrency", concurrency, 1)
        )
        self.policy, self.renderer, self.concurrency, self.threads.size = (
            policy,
            renderer,
            size,
            size,
        )
        self.sampling = self.sampling if sampling is None else sampling
        self.limits = self.limits if limits is None else limits
        if changed and isinstance(policy, Policy):
            warn_if_cut(self.sampling)

    def runner(self, task: Task) -> EpisodeRunner:
        """The runner of one task; an engine whose policy or settings differ from task to task overrides it."""
        if self.policy is None:
            raise ConfigError(
                "this rollout has no policy; give one to Rollout(policy, ...), or to each episode(task, policy=...)"
            )
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
        """Play one task, with its own policy and settings where given. For trainers that ask for episodes one by one: any
        number may be under way on one event loop, each with a thread for its blocking steps, and they share the environments.
        Cancel the awaiting task to end one; `stop` ends batches and streams only."""
        if policy is None and self.policy is None:
            raise ConfigError(
                "this rollout has no policy; give one to Rollout(policy, ...), or to each episode(task, policy=...)"
            )
        policy = self.policy if policy is None else policy
        renderer = self.renderer if renderer is None else renderer
        _check_policy(policy, renderer)
        assert policy is not None
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
        """Plays tasks, `concurrency` at a time, and yields each episode when it ends; tasks are drawn as they are needed, and no
        more of them once `stop` was called."""
        waiting = iter(tasks)
        running: dict[asyncio.Task[Episode], EpisodeRunner] = {}
        # not asyncio.wait(running), which looks at every running episode each time one ends
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
                        self._running.add(future)
                    self._tell_live(len(running))
                    if not running:
                        return
                    done = await ended.get()
                    runner = running.pop(done)
                    self._running.discard(done)
                    self._raise_engine_error(runner)
                    yield runner.cut_short() if done.cancelled() else done.result()
            finally:
                self._running -= running.keys()
                for left in running:
                    left.cancel()
                if running:
                    await asyncio.wait(running)
                await self.pool.rest()

    async def batch(
        self, tasks: Iterable[Task], on_episode: Callable[[Episode], None] | None = None
    ) -> list[Episode]:
        """Plays tasks and returns their episodes in the order of the tasks; `on_episode` is called as each one ends."""
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
        send_event("batch_end", episodes=ordered)
        return ordered

    def run_batch(
        self, tasks: Iterable[Task], on_episode: Callable[[Episode], None] | None = None
    ) -> list[Episode]:
        """`batch` for programs without an event loop. Ctrl-C raises `Interrupted`, which holds what was finished."""
        interrupted = False

        def interrupt() -> None:
            nonlocal interrupted
            interrupted = True
            self.stop()

        with self._under_way():  # from now on, not only once its event loop runs
            episodes = run_sync(self.batch(tasks, on_episode), on_interrupt=interrupt)
        if interrupted:
            raise Interrupted(episodes)
        return episodes

    def close(self) -> None:
        """Closes the environments that are kept from batch to batch."""
        self.pool.close()

    def __enter__(self) -> Rollout:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stop(self) -> None:
        """End the batches and streams that are running. Their episodes come back cancelled, also those of a batch that were not
        begun. Without a running batch it does nothing. May be called from any thread."""
        with self._lock:
            if not self._busy:
                return
            self._stopping = True  # also for a batch whose stream has not begun yet
            if self._loop is None:
                return
            if threading.get_ident() != self._thread:
                with suppress(RuntimeError):  # the loop has closed, so that nothing is running
                    self._loop.call_soon_threadsafe(self._cancel_running)
                return
        self._cancel_running()

    def _raise_engine_error(self, runner: EpisodeRunner) -> None:
        if self.policy_errors == "raise" and runner.engine_error is not None:
            raise runner.engine_error

    def _cancel_running(self) -> None:
        if self._stopping:  # else what was to be stopped has ended meanwhile
            for future in self._running:
                future.cancel()

    @contextmanager
    def _under_way(self, loop: asyncio.AbstractEventLoop | None = None) -> Iterator[None]:
        """While a batch or a stream is played, by `loop` where it is known."""
        with self._lock:
            self._busy += 1
            if loop is not None:
                self._loop, self._thread = loop, threading.get_ident()
        try:
            yield
        finally:
            with self._lock:
                self._busy -= 1
                if not self._busy:  # what was to be stopped is over; tasks to come are played
                    self._stopping, self._loop = False, None

    def _tell_live(self, episodes: int) -> None:
        tell = getattr(self.policy, "set_live", None)
        if tell is not None:
            tell(episodes)


def _check_policy(policy: Any, renderer: Renderer | None) -> None:
    if not isinstance(policy, (Policy, ChatPolicy, Player)):
        raise ConfigError(
            f"{type(policy).__name__} is not a policy: it has neither generate(), chat() nor act()"
        )
    if isinstance(policy, Policy) and renderer is None:
        raise ConfigError(
            "a policy that samples token ids needs a renderer: Rollout(policy, Renderer(tokenizer))"
        )


def tasks_for(
    env_id: str,
    seeds: Iterable[int],
    *,
    samples: int = 1,
    wrappers: Sequence[Any] | str = (),
    options: Mapping[str, Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
) -> list[Task]:
    """A task for each seed, `samples` times: those of one seed stand together and form a group."""
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
    """Plays one episode of an environment, given by id or as an object."""
    if isinstance(env, Env):
        if wrappers:
            raise ConfigError(
                "wrappers by name go with an environment id; put them around an environment object yourself"
            )
        spec = env.spec
        task = Task(
            spec.id if spec is not None else type(env.unwrapped).__name__, seed, dict(options or {})
        )
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
    """Plays tasks and returns their episodes in the order of the tasks."""
    with Rollout(
        policy, renderer, sampling=sampling, limits=limits, concurrency=concurrency
    ) as engine:
        return engine.run_batch(tasks, on_episode)


def run_sync(work: Coroutine[Any, Any, T], on_interrupt: Callable[[], None]) -> T:
    """Runs a coroutine to its end from a program without an event loop, or, from within one, on a thread of its own.

    The first Ctrl-C calls `on_interrupt`, so that the coroutine can end in order; the second one ends it at once.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_with_interrupt(work, on_interrupt))
    found: list[T] = []
    errors: list[BaseException] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def noted() -> T:
        loops.append(asyncio.get_running_loop())
        return await work

    def elsewhere() -> None:
        try:
            found.append(asyncio.run(noted()))
        except BaseException as error:  # noqa: BLE001 - raised again on the caller's thread
            errors.append(error)
        done.set()

    done = (
        threading.Event()
    )  # and not Thread.join, which takes a thread for finished once Ctrl-C broke into it
    threading.Thread(target=elsewhere, name="gem-rollout", daemon=True).start()
    try:
        done.wait()
    except KeyboardInterrupt:
        if not done.is_set() and loops:
            loops[0].call_soon_threadsafe(on_interrupt)
        done.wait()
    if errors:
        raise errors[0]
    return found[0]


async def _with_interrupt(work: Coroutine[Any, Any, T], on_interrupt: Callable[[], None]) -> T:
    pressed = 0

    def on_signal(*_: Any) -> None:
        nonlocal pressed
        pressed += 1
        if pressed > 1:
            raise KeyboardInterrupt
        loop.call_soon_threadsafe(on_interrupt)

    loop = asyncio.get_running_loop()
    try:  # not loop.add_signal_handler: a loop that an environment holds up would never hear the second one either
        before = signal.signal(signal.SIGINT, on_signal)
    except ValueError:  # not the main thread
        return await work
    try:
        return await work
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)
