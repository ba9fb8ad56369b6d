"""EnvHosts: environments on a Ray cluster, driven by the same engine and the same vectors as those on this machine.

A host is an actor that holds many environments; `RayEnv` stands here for one of them, and is an ordinary async environment:

    hosts = EnvHosts(8)
    engine = Rollout(policy, renderer, make_env=hosts.make_env, limits=Limits(retries=2))
    vec = make_vec("game:GuessTheNumber-v0-hard", 128, mode="ray", hosts=hosts)

A host that dies costs the episodes it was playing: their next call raises `EnvDiedError`, which the engine retries elsewhere or
turns into a failed episode. A new host is asked for in its place and takes part as soon as the cluster has room for it. Each host
answers `calls` calls at a time; further ones wait here, not in its queue. What is played does not depend on where: seeds come
with the tasks, and a batch comes back in their order.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
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
from gem_execution.vector.env import AsyncVectorEnv
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

_SECONDS_TO_ANSWER = 30.0
"""For calls that no engine's deadline stands behind, such as `sample_action`."""


class EnvHosts:
    """The hosts of a cluster. May be shared by engines and vectors."""

    def __init__(
        self,
        count: int = 2,
        *,
        calls: int = 64,
        num_cpus: float = 1.0,
        start_seconds: float = 60.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`calls`: at a time for each host. `start_seconds`: how long to wait for a host where there is none. `options`: further
        options of the actors, such as `resources`. Starts or joins a cluster with `ray.init()` unless that was done."""
        whole_number("count", count, 1)
        whole_number("calls", calls, 1)
        if not ray.is_initialized():
            ray.init(log_to_driver=False)
        self.calls, self.start_seconds = calls, start_seconds
        settings = {
            "num_cpus": num_cpus,
            "scheduling_strategy": "SPREAD",
            "max_restarts": 0,
            **(options or {}),
        }
        # room for calls whose waiter gave up, and for closing
        self._actor = ray.remote(EnvHost).options(max_concurrency=2 * calls + 16, **settings)
        self._lock = threading.RLock()
        self._hosts = [_Host(self._actor.remote(calls)) for _ in range(count)]
        self._keys = itertools.count()
        self.died = 0
        """How many hosts were lost so far."""

    def env(self, spec: EnvSpec) -> RayEnv:
        """An environment on one of the hosts; what `make(id, execution=hosts.env)` calls."""
        return RayEnv(self, spec.entry_point, spec.kwargs)

    def make_env(self, task: Task) -> Env:
        """What `Rollout(make_env=...)` takes."""
        return make(task.env_id, wrappers=task.wrappers, execution=self.env, **task.env_kwargs)

    @property
    def living(self) -> int:
        """How many hosts have answered so far and are not known to be dead."""
        with self._lock:
            return sum(host.is_ready() for host in self._hosts)

    def close(self) -> None:
        """Ends all hosts with what is on them."""
        with self._lock:
            hosts, self._hosts = self._hosts, []
        for host in hosts:
            ray.kill(host.actor)

    def __enter__(self) -> EnvHosts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def place(self, now: _Host | None) -> _Host:
        """The host with the fewest environments, or the one an environment is on now where moving gains nothing; waits where
        none has started."""
        end = time.monotonic() + self.start_seconds
        while True:
            with self._lock:
                if not self._hosts:
                    raise EnvDiedError("the hosts were closed; make a new EnvHosts")
                ready = [host for host in self._hosts if host.is_ready()]
                if ready:
                    host = min(ready, key=lambda h: h.envs)
                    if now in ready and now.envs <= host.envs + 1:
                        return now
                    host.envs += 1
                    return host
            if time.monotonic() > end:
                cpus = ray.cluster_resources().get("CPU", 0)
                raise EnvDiedError(
                    f"no host started within {self.start_seconds:g} s on a cluster with {cpus:g} CPUs. "
                    "Ask for fewer hosts, or for less with num_cpus"
                )
            await asyncio.sleep(0.05)

    def lost(self, host: _Host) -> None:
        """Puts a new host in the place of one that died."""
        with self._lock:
            if host in self._hosts:
                self.died += 1
                self._hosts[self._hosts.index(host)] = _Host(self._actor.remote(self.calls))
                ray.kill(host.actor)  # where it is only out of reach, it must not come back

    def next_key(self) -> int:
        """A name for one environment on a host."""
        return next(self._keys)


class RayEnv(RemoteEnv):
    """Stands for an environment on a host."""

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
        return cast(ResetResult, await self._tell("reset", self._seed, dict(options)))

    async def on_step(self, action: str) -> StepResult:  # type: ignore[override]
        return cast(StepResult, await self._tell("step", action))

    async def on_close(self) -> None:  # type: ignore[override]
        host, self._host = self._host, None
        if host is not None and not host.dead:
            host.envs -= 1
            host.actor.close.remote(
                self._key
            )  # nobody waits: a host that hangs must not hold up the end

    def ask(self, what: str, *args: Any) -> Any:
        """Blocks until the host has answered."""
        host = self._placed()
        try:
            return self._answer(
                what, ray.get(self._send(host, what, args), timeout=_SECONDS_TO_ANSWER)
            )
        except RayError as error:
            raise self._broken(host, what, error) from error

    async def _tell(self, what: str, *args: Any) -> Any:
        host = self._placed()
        async with host.turn(self.hosts.calls):
            reference = self._send(host, what, args)
            try:
                return self._answer(what, await reference)
            except asyncio.CancelledError:
                ray.cancel(reference)
                raise
            except RayError as error:
                raise self._broken(host, what, error) from error

    def _placed(self) -> _Host:
        if self._host is None:
            raise EnvDiedError(f"{self._name()} is on no host: call reset(seed=...) first")
        return self._host

    def _send(self, host: _Host, what: str, args: tuple[Any, ...]) -> Any:
        try:
            return host.actor.call.remote(self._key, self.entry_point, self.kwargs, what, args)
        except RayActorError as error:
            raise self._broken(host, what, error) from error
        except TypeError as error:
            raise EnvError(
                f"{what} of {self._name()} was given something that cannot be sent to its host: {error}"
            ) from error

    def _answer(self, what: str, answer: tuple[bool, Any]) -> Any:
        done, value = answer
        if done:
            return value
        raise from_data(value)

    def _broken(self, host: _Host, what: str, error: RayError) -> Exception:
        if isinstance(error, RayTaskError):
            return ContractError(
                f"{what}() of {self._name()} returned something that cannot leave its host: {error.cause}"
            )
        if isinstance(error, (GetTimeoutError, TaskCancelledError)):
            return DeadlineError(
                f"{what} of {self._name()} was not answered within {_SECONDS_TO_ANSWER:g} s, or cancelled"
            )
        if not host.dead:
            host.dead = True
            self.hosts.lost(host)
        return EnvDiedError(
            f"the host of {self._name()} died during {what}: {type(error).__name__}"
        )


class EnvHost:
    """An actor that holds environments under keys."""

    def __init__(self, calls: int) -> None:
        self._threads = StepThreads(calls)
        self._envs: dict[int, Env] = {}

    async def ready(self) -> str:
        """Answers as soon as the host is there: the node it is on."""
        return str(ray.get_runtime_context().get_node_id())

    async def call(
        self,
        key: int,
        entry_point: EntryPoint,
        kwargs: dict[str, Any],
        what: str,
        args: tuple[Any, ...],
    ) -> tuple[bool, Any]:
        """Does a verb of `perform` with the environment under a key, which is made where it is not there."""
        try:
            env = self._envs.get(key)
            if env is None:
                env = self._envs[key] = await self._threads.call(
                    _build, entry_point, kwargs, late=close_unused
                )
                env.run_on(self._threads.call)
            value = perform(env, what, args)
            return True, await value if isawaitable(value) else value
        except Exception as error:  # noqa: BLE001 - raised again where the call came from
            return False, as_data(error)

    async def close(self, key: int) -> None:
        """Lets an environment go."""
        env = self._envs.pop(key, None)
        if env is not None:
            value: Any = env.close()
            if isawaitable(value):
                await value


class _Host:
    """What is known here of a host."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.dead = False
        self.envs = 0
        self._started = False
        self._starting = actor.ready.remote()
        self._lock = threading.Lock()  # its calls may come from several event loops
        self._running = 0
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def is_ready(self) -> bool:
        """Whether it has started."""
        if not self._started and not self.dead:
            self._started = bool(ray.wait([self._starting], timeout=0)[0])
        return self._started and not self.dead

    def turn(self, calls: int) -> _Turn:
        """A place among the calls it answers at a time."""
        return _Turn(self, calls)


class _Turn:
    """Held while a call is under way; entering waits while a host has all the calls it may have."""

    def __init__(self, host: _Host, calls: int) -> None:
        self._host, self._calls = host, calls

    async def __aenter__(self) -> None:
        host, loop = self._host, asyncio.get_running_loop()
        while True:
            place: asyncio.Future[None] = loop.create_future()
            with host._lock:
                if host._running < self._calls:
                    host._running += 1
                    return
                host._waiting.append((loop, place))
            try:
                await place
            except asyncio.CancelledError:
                with host._lock:
                    if (loop, place) in host._waiting:
                        host._waiting.remove((loop, place))
                    else:  # its turn had come: the next one that waits takes it
                        self._wake_next()
                raise

    async def __aexit__(self, *_: object) -> None:
        with self._host._lock:
            self._host._running -= 1
            self._wake_next()

    def _wake_next(self) -> None:
        while self._host._waiting:
            loop, place = self._host._waiting.pop(0)
            try:
                loop.call_soon_threadsafe(_wake, place)  # it may wait on another loop than ours
            except RuntimeError:  # that loop is closed: nobody waits there
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
    """What `make_vec(mode="ray")` returns: a vector over hosts that are given, or made for it and closed with it."""
    own = not isinstance(hosts, EnvHosts)
    placed = hosts if isinstance(hosts, EnvHosts) else EnvHosts(hosts)
    makers: list[Callable[[], Env]] = []
    for id, arguments in zip(each, kwargs, strict=True):
        if not isinstance(id, str):
            raise ConfigError(
                f"make_vec(mode='ray') takes environment ids, not {described(id)}; register it under an id"
            )
        makers.append(partial(make, id, wrappers=wrappers, execution=placed.env, **arguments))
    vec = AsyncVectorEnv(
        makers, autoreset=autoreset, env_ids=[str(id) for id in each], deadline=deadline
    )
    if own:
        vec.on_closed = placed.close
    return vec


def _build(entry_point: EntryPoint, kwargs: Mapping[str, Any]) -> Env:
    made = load_entry_point(entry_point, "an environment on a host")
    return (
        ProcessEnv(entry_point, kwargs)
        if getattr(made, "execution", "") == "process"
        else build(entry_point, kwargs)
    )


def _wake(place: asyncio.Future[None]) -> None:
    if not place.done():
        place.set_result(None)
