"""EnvHosts: environments on a Ray cluster, for the same engine and vectors as local environments.

A host is an actor that holds many environments. `RayEnv` is a proxy for one of them and an ordinary
async environment:

    hosts = EnvHosts(8)
    engine = Rollout(policy, renderer, make_env=hosts.make_env, limits=Limits(retries=2))
    vec = make_vec("game:GuessTheNumber-v0-hard", 128, mode="ray", hosts=hosts)

When a host dies, the next call of each of its episodes raises `EnvDiedError`; the engine retries
the episode on another host or marks it as failed. A new host replaces the dead one as soon as the
cluster has room. Each host runs `calls` calls at a time; further calls wait in the caller, not in
the host's queue. Episodes do not depend on the host: tasks carry their seeds, and a batch returns
its episodes in the order of the tasks.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from typing import Any, cast

from gem_core.arguments import whole_number
from gem_core.env.base import Env, ResetResult, StepResult
from gem_core.env.registry import EnvSpec, make
from gem_core.errors import (
    ConfigError,
    ContractError,
    DeadlineError,
    EnvDiedError,
    EnvError,
    MissingDependencyError,
)
from gem_core.plugins.entry_points import EntryPoint, load_entry_point
from gem_core.rollout.env_pool import close_unused
from gem_core.rollout.step_threads import StepThreads
from gem_core.types import Task
from gem_execution.process import ProcessEnv
from gem_execution.remote import RemoteEnv, as_data, build, described, from_data, perform
from gem_execution.vector.async_env import AsyncVectorEnv
from gem_execution.vector.slot import Autoreset

try:
    import ray
    from ray.exceptions import (
        GetTimeoutError,
        RayActorError,
        RayError,
        RayTaskError,
        TaskCancelledError,
    )
except ImportError as error:
    raise MissingDependencyError("gem_execution.ray_hosts", "ray", str(error)) from error

__all__ = ["EnvHost", "EnvHosts", "RayEnv", "make_ray_vec"]

_log = logging.getLogger(__name__)
_SECONDS_TO_ANSWER = 30.0
"""Timeout of calls without a deadline, such as `sample_action`."""


class EnvHosts:
    """The hosts of a cluster. Several engines and vectors can share them."""

    def __init__(
        self,
        count: int = 2,
        *,
        calls: int = 64,
        num_cpus: float = 1.0,
        start_seconds: float = 180.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Start the hosts. If Ray is not initialized, connect to `RAY_ADDRESS` or start it here.

        `calls`: concurrent calls per host. `start_seconds`: timeout for the first host to start.
        `options`: further options of the actors, such as `resources`.
        """
        whole_number("count", count, 1)
        whole_number("calls", calls, 1)
        if not ray.is_initialized():
            _start_ray()
        self.calls, self.start_seconds = calls, start_seconds
        settings = {
            "num_cpus": num_cpus,
            "scheduling_strategy": "SPREAD",
            "max_restarts": 0,
            **(options or {}),
        }
        # leave room for cancelled calls and for `close`
        self._actor = ray.remote(EnvHost).options(max_concurrency=2 * calls + 16, **settings)
        self._lock = threading.RLock()
        self._hosts = [_Host(self._actor.remote(calls)) for _ in range(count)]
        self._keys = itertools.count()
        self.died = 0
        """Number of hosts that died so far."""

    def env(self, spec: EnvSpec) -> RayEnv:
        """Create a proxy for an environment on a host, for `make(id, execution=hosts.env)`."""
        return RayEnv(self, spec.entry_point, spec.kwargs)

    def make_env(self, task: Task) -> Env:
        """Make the environment of a task, for `Rollout(make_env=...)`."""
        return make(task.env_id, wrappers=task.wrappers, execution=self.env, **task.env_kwargs)

    @property
    def living(self) -> int:
        """Number of hosts that have started and are not known to be dead."""
        with self._lock:
            return sum(host.is_ready() for host in self._hosts)

    def close(self) -> None:
        """Kill all hosts with their environments."""
        with self._lock:
            hosts, self._hosts = self._hosts, []
        for host in hosts:
            ray.kill(host.actor)

    def __enter__(self) -> EnvHosts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def place(self, current: _Host | None) -> _Host:
        """Choose the host with the fewest environments; wait until one has started.

        The choice is the current host if a move would not balance the load.
        """
        end = time.monotonic() + self.start_seconds
        while True:
            with self._lock:
                if not self._hosts:
                    raise EnvDiedError("the hosts were closed; create a new EnvHosts")
                ready = [host for host in self._hosts if host.is_ready()]
                if ready:
                    host = min(ready, key=lambda h: h.envs)
                    if current in ready and current.envs <= host.envs + 1:
                        return current
                    host.envs += 1
                    return host
            if time.monotonic() > end:
                cpus = ray.cluster_resources().get("CPU", 0)
                raise EnvDiedError(
                    f"no host started within {self.start_seconds:g} s on a cluster with "
                    f"{cpus:g} CPUs; use fewer hosts, or a smaller num_cpus"
                )
            await asyncio.sleep(0.05)

    def lost(self, host: _Host) -> None:
        """Replace a host that died."""
        with self._lock:
            if host in self._hosts:
                self.died += 1
                self._hosts[self._hosts.index(host)] = _Host(self._actor.remote(self.calls))
                ray.kill(host.actor)  # if it was only unreachable, it must not come back

    def next_key(self) -> int:
        """Return a unique key for an environment on a host."""
        return next(self._keys)


def _start_ray(attempts: int = 3) -> None:
    """Connect to the cluster at RAY_ADDRESS, or start one here.

    A start is tried again: on a busy machine, Ray's own timeouts may be too short.
    """
    address = os.environ.get("RAY_ADDRESS") or "not set"
    if address not in ("local", "not set"):
        attempts = 1  # Ray itself tries to connect for minutes
    for attempt in range(1, attempts + 1):
        began = time.time()
        try:
            ray.init(log_to_driver=False)
            return
        except Exception as error:
            ray.shutdown()
            _kill_incomplete_ray(began)
            if attempt == attempts:
                raise EnvError(
                    f"execution='ray' has no Ray (RAY_ADDRESS is {address}): {error}. Start a "
                    "cluster and set RAY_ADDRESS, call `ray.init(...)` first, or use "
                    "execution='process'"
                ) from error
            _log.warning("Ray did not start (attempt %d of %d): %s", attempt, attempts, error)


def _kill_incomplete_ray(since: float) -> None:
    """Kill the processes of a `ray.init()` that failed; `ray.shutdown()` does not know them."""
    import psutil  # part of Ray

    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            of_ray = any("/ray/" in argument for argument in process.cmdline())
            if of_ray and process.create_time() >= since - 1:  # its clock has ticks of 10 ms
                process.kill()


class RayEnv(RemoteEnv):
    """Proxy for an environment on a host."""

    def __init__(
        self, hosts: EnvHosts, entry_point: EntryPoint, kwargs: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(entry_point, kwargs)
        self.hosts = hosts
        self._host: _Host | None = None
        self._key = hosts.next_key()

    async def on_reset(self, options: Mapping[str, Any]) -> ResetResult:  # type: ignore[override]
        host = await self.hosts.place(self._host)
        if host is not self._host:
            await self.on_close()
            self._host = host
        return cast(ResetResult, await self._call_host("reset", self._seed, dict(options)))

    async def on_step(self, action: str) -> StepResult:  # type: ignore[override]
        return cast(StepResult, await self._call_host("step", action))

    async def on_close(self) -> None:  # type: ignore[override]
        host, self._host = self._host, None
        if host is not None and not host.dead:
            host.envs -= 1
            host.actor.close.remote(self._key)  # do not wait: the host may hang

    def ask(self, method: str, *args: Any) -> Any:
        """Call a method and block until the host has answered."""
        host = self._current_host()
        try:
            return _result(ray.get(self._send(host, method, args), timeout=_SECONDS_TO_ANSWER))
        except RayError as error:
            raise self._host_error(host, method, error) from error

    async def _call_host(self, method: str, *args: Any) -> Any:
        host = self._current_host()
        async with host.turn(self.hosts.calls):
            reference = self._send(host, method, args)
            try:
                return _result(await reference)
            except asyncio.CancelledError:
                ray.cancel(reference)
                raise
            except RayError as error:
                raise self._host_error(host, method, error) from error

    def _current_host(self) -> _Host:
        if self._host is None:
            raise EnvDiedError(f"{self._name()} is not on a host; call reset(seed=...) first")
        return self._host

    def _send(self, host: _Host, method: str, args: tuple[Any, ...]) -> Any:
        try:
            return host.actor.call.remote(self._key, self.entry_point, self.kwargs, method, args)
        except RayActorError as error:
            raise self._host_error(host, method, error) from error
        except TypeError as error:
            raise EnvError(
                f"cannot send an argument of {method} to the host of {self._name()}: {error}"
            ) from error

    def _host_error(self, host: _Host, method: str, error: RayError) -> Exception:
        if isinstance(error, RayTaskError):
            return ContractError(
                f"cannot send the result of {method}() of {self._name()} from its host: "
                f"{error.cause}"
            )
        if isinstance(error, (GetTimeoutError, TaskCancelledError)):
            return DeadlineError(
                f"{method} of {self._name()} was cancelled, or took over {_SECONDS_TO_ANSWER:g} s"
            )
        if not host.dead:
            host.dead = True
            self.hosts.lost(host)
        return EnvDiedError(
            f"the host of {self._name()} died during {method}: {type(error).__name__}"
        )


class EnvHost:
    """Actor that holds environments by key."""

    def __init__(self, calls: int) -> None:
        self._threads = StepThreads(calls)
        self._envs: dict[int, Env] = {}

    async def ready(self) -> str:
        """Return the id of the host's node, as soon as the host has started."""
        return str(ray.get_runtime_context().get_node_id())

    async def call(
        self,
        key: int,
        entry_point: EntryPoint,
        kwargs: dict[str, Any],
        method: str,
        args: tuple[Any, ...],
    ) -> tuple[bool, Any]:
        """Run a method of `perform` on the environment of a key; make the environment first."""
        try:
            env = self._envs.get(key)
            if env is None:
                env = self._envs[key] = await self._threads.call(
                    _build, entry_point, kwargs, late=close_unused
                )
                env.run_on(self._threads.call)
            value = perform(env, method, args)
            return True, await value if isawaitable(value) else value
        except Exception as error:  # noqa: BLE001 - the caller raises it
            return False, as_data(error)

    async def close(self, key: int) -> None:
        """Close and remove an environment."""
        env = self._envs.pop(key, None)
        if env is not None:
            value: Any = env.close()
            if isawaitable(value):
                await value


class _Host:
    """The caller's view of a host: whether it is alive, its environments and its running calls."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.dead = False
        self.envs = 0
        self._started = False
        self._starting = actor.ready.remote()
        self._lock = threading.Lock()  # calls may come from several event loops
        self._running = 0
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def is_ready(self) -> bool:
        """Whether it has started."""
        if not self._started and not self.dead:
            self._started = bool(ray.wait([self._starting], timeout=0)[0])
        return self._started and not self.dead

    def turn(self, calls: int) -> _Turn:
        """Return a context manager that limits the concurrent calls."""
        return _Turn(self, calls)


class _Turn:
    """Semaphore slot of one call; entering waits while the host runs its maximum of calls."""

    def __init__(self, host: _Host, calls: int) -> None:
        self._host, self._calls = host, calls

    async def __aenter__(self) -> None:
        host, loop = self._host, asyncio.get_running_loop()
        while True:
            woken: asyncio.Future[None] = loop.create_future()
            with host._lock:
                if host._running < self._calls:
                    host._running += 1
                    return
                host._waiting.append((loop, woken))
            try:
                await woken
            except asyncio.CancelledError:
                with host._lock:
                    if (loop, woken) in host._waiting:
                        host._waiting.remove((loop, woken))
                    else:  # this call was woken already: wake the next one instead
                        self._wake_next()
                raise

    async def __aexit__(self, *_: object) -> None:
        with self._host._lock:
            self._host._running -= 1
            self._wake_next()

    def _wake_next(self) -> None:
        while self._host._waiting:
            loop, woken = self._host._waiting.pop(0)
            try:
                loop.call_soon_threadsafe(_wake, woken)  # it may wait on another event loop
            except RuntimeError:  # that event loop is closed
                continue
            return


def make_ray_vec(
    each: Sequence[str | Callable[[], Env]],
    kwargs: Sequence[Mapping[str, Any]],
    *,
    wrappers: Sequence[Any] | str = (),
    hosts: EnvHosts | int = 2,
    autoreset: Autoreset | str = Autoreset.NEXT_STEP,
    deadline: float | None = None,
) -> AsyncVectorEnv:
    """Make the vector of `make_vec(mode="ray")`.

    `hosts`: existing hosts, or the number of hosts to start and to close with the vector.
    """
    for id in each:
        if not isinstance(id, str):
            raise ConfigError(
                f"make_vec(mode='ray') needs environment ids; got {described(id)}, "
                "which you can register with an id"
            )
    ids = [str(id) for id in each]
    own = not isinstance(hosts, EnvHosts)
    env_hosts = hosts if isinstance(hosts, EnvHosts) else EnvHosts(hosts)
    makers = [
        partial(make, id, wrappers=wrappers, execution=env_hosts.env, **arguments)
        for id, arguments in zip(ids, kwargs, strict=True)
    ]
    try:
        vec = AsyncVectorEnv(makers, autoreset=autoreset, env_ids=ids, deadline=deadline)
    except BaseException:
        if own:
            env_hosts.close()
        raise
    if own:
        vec.on_closed = env_hosts.close
    return vec


def _result(answer: tuple[bool, Any]) -> Any:
    done, value = answer
    if done:
        return value
    raise from_data(value)


def _build(entry_point: EntryPoint, kwargs: Mapping[str, Any]) -> Env:
    loaded = load_entry_point(entry_point, "an environment on a host")
    if getattr(loaded, "execution", "") == "process":
        return ProcessEnv(entry_point, kwargs)
    return build(entry_point, kwargs)


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
