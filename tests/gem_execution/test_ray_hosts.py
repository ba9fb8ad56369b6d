"""Engine and vectors on a Ray cluster with several nodes, one of which is killed during a batch."""

from __future__ import annotations

import asyncio
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from project import ROOT, SUPPORT
from ray.cluster_utils import Cluster

from gem_core import (
    Env,
    Episode,
    Limits,
    RandomPlayer,
    Rollout,
    ScriptedPlayer,
    StopReason,
    register,
    run_batch,
    tasks_for,
)
from gem_core.env import registry
from gem_core.errors import ConfigError, EnvDiedError, EnvError, UnknownNameError
from gem_execution import ray_hosts
from gem_execution.ray_hosts import EnvHosts, _Host, _start_ray
from gem_execution.vector.async_env import AsyncVectorEnv
from gem_execution.vector.factory import make_vec

GUESS = "game:GuessTheNumber-v0-hard"
NAMES = ("Counter", "Blocking", "Awaited", "Misbehaving", "MisbehavingIsolated", "FailsToStart")

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray's own
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    # the hosts import misbehaving.py
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SUPPORT), *sys.path])

    def start() -> Any:
        ray.shutdown()  # after a failed attempt
        head = {"num_cpus": 0, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(2):
            cluster.add_node(wait=False, num_cpus=4)
        cluster.wait_for_nodes(timeout=120)
        ray.init(address=cluster.address, log_to_driver=False)
        return cluster

    cluster = retried(start)
    for name in NAMES:
        register(f"test_ray:{name}", f"misbehaving:{name}")
    yield cluster
    for name in NAMES:
        registry.environments.remove(f"test_ray:{name}")
    ray.shutdown()
    cluster.shutdown()


def retried(start: Callable[[], Any]) -> Any:
    """Start a part of Ray. On a busy machine that needs more than one attempt."""
    for attempts_left in reversed(range(4)):
        began = time.time()
        try:
            return start()
        except Exception:
            ray_hosts._kill_incomplete_ray(began)
            if not attempts_left:
                raise
    raise AssertionError


@pytest.fixture
def hosts(cluster: Any) -> Iterator[EnvHosts]:
    with EnvHosts(2, calls=16) as hosts:
        wait_for(hosts, 2)
        yield hosts


def wait_for(hosts: EnvHosts, count: int) -> None:
    end = time.monotonic() + 300
    while hosts.living < count:
        assert time.monotonic() < end, f"only {hosts.living} hosts started"
        time.sleep(0.05)


def wait_for_death(actor: Any) -> None:
    """Wait until calls of the actor fail."""
    while True:
        try:
            ray.get(actor.ready.remote(), timeout=30)
        except ray.exceptions.RayActorError:
            return


def test_batch_equals_a_local_batch(hosts: EnvHosts) -> None:
    def compared(episodes: list[Episode]) -> list[Any]:
        return [
            (e.seed, e.turns, e.stop, e.final_observation, e.wrappers, e.index) for e in episodes
        ]

    tasks = tasks_for(GUESS, range(12), samples=2, wrappers=["turn_limit(max_turns=5)"])
    remote = Rollout(RandomPlayer(), make_env=hosts.make_env, concurrency=8).run_batch(tasks)
    assert compared(remote) == compared(run_batch(tasks, RandomPlayer()))


def test_environments_are_distributed_over_the_hosts(hosts: EnvHosts) -> None:
    episodes = Rollout(RandomPlayer(), make_env=hosts.make_env, concurrency=8).run_batch(
        tasks_for("test_ray:Blocking", range(8))
    )
    pids = {e.turns[0].info["pid"] for e in episodes}
    assert os.getpid() not in pids
    assert len(pids) == 2


@pytest.mark.parametrize("name", ["Counter", "Blocking", "Awaited"])
def test_vector_steps_on_the_cluster(hosts: EnvHosts, name: str) -> None:
    with make_vec(f"test_ray:{name}", 6, mode="ray", hosts=hosts, autoreset="same_step") as vec:
        observations, _ = vec.reset(seed=3)
        with make_vec(f"test_ray:{name}", 6, autoreset="same_step") as local:
            assert observations == local.reset(seed=3)[0]
            for number in range(7):
                actions = [f"{number}{i}" for i in range(6)]
                assert vec.step(actions)[:4] == local.step(actions)[:4]


def test_slow_environment_does_not_delay_the_others(hosts: EnvHosts, tmp_path: Path) -> None:
    with make_vec("test_ray:Misbehaving", 4, mode="ray", hosts=hosts) as vec:
        assert isinstance(vec, AsyncVectorEnv)
        vec.reset(seed=0)
        vec.send([f"await {tmp_path}/file", "a", "a", "a"])
        assert sorted(vec.recv(at_least=3, timeout=60).indices) == [1, 2, 3]
        (tmp_path / "file").touch()
        assert vec.recv(timeout=60).indices == [0]


def test_vector_that_cannot_be_made_closes_its_hosts(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[EnvHosts] = []

    class Hosts(EnvHosts):
        def close(self) -> None:
            closed.append(self)
            super().close()

    monkeypatch.setattr(ray_hosts, "EnvHosts", Hosts)
    with pytest.raises(UnknownNameError, match="did you mean"):
        make_vec("game:GuesTheNumber-v0-hard", 2, mode="ray", hosts=1)
    assert len(closed) == 1


def play(env: Env, observation: str) -> str:
    return {3: "raise", 4: "nonsense", 5: "unpicklable", 6: "hang"}.get(env.seed, "x")


def test_failing_environment_fails_only_its_episode(hosts: EnvHosts) -> None:
    tasks = tasks_for("test_ray:Misbehaving", range(10))
    engine = Rollout(
        ScriptedPlayer(play),
        make_env=hosts.make_env,
        limits=Limits(step_deadline=8.0),
        concurrency=10,
    )
    episodes = engine.run_batch(tasks)
    assert [e.seed for e in episodes] == list(range(10))
    assert {e.seed: e.stop for e in episodes if e.failed} == {
        3: StopReason.ENV_ERROR,
        4: StopReason.ENV_INVALID,
        5: StopReason.ENV_INVALID,
        6: StopReason.ENV_DEADLINE,
    }
    assert episodes[3].failure is not None
    assert "misbehaving.py" in episodes[3].failure.traceback
    assert [e.total_reward for e in episodes if not e.failed] == [3.0] * 6


@pytest.mark.parametrize("retries", [0, 2])
def test_dead_host_fails_only_its_episodes(cluster: Any, retries: int) -> None:
    """The episodes of a killed host are retried or failed; the others are not affected."""
    with EnvHosts(2, calls=16) as hosts:
        wait_for(hosts, 2)
        finished = 0

        def on_episode(episode: Any) -> None:
            nonlocal finished
            finished += 1
            if finished == 10:
                actor = hosts._hosts[0].actor
                ray.kill(actor)
                wait_for_death(actor)

        tasks = tasks_for("test_ray:Blocking", range(60), env_kwargs={"seconds": 0.05})
        engine = Rollout(
            RandomPlayer(), make_env=hosts.make_env, limits=Limits(retries=retries), concurrency=12
        )
        episodes = engine.run_batch(tasks, on_episode)
        assert hosts.died == 1
    assert [e.seed for e in episodes] == list(range(60))
    failed = [e for e in episodes if e.failed]
    assert all(e.failure is not None and e.failure.kind == "EnvDiedError" for e in failed)
    assert len(failed) in (range(1, 13) if retries == 0 else [0])  # at most the running episodes
    assert [e.total_reward for e in episodes if not e.failed] == [3.0] * (60 - len(failed))


def test_dead_process_env_does_not_kill_its_host(hosts: EnvHosts) -> None:
    engine = Rollout(
        ScriptedPlayer(lambda env, _: "exit" if env.seed == 1 else "x"),
        make_env=hosts.make_env,
        concurrency=4,
    )
    episodes = engine.run_batch(tasks_for("test_ray:MisbehavingIsolated", range(4)))
    assert [e.seed for e in episodes if e.failed] == [1]
    assert hosts.died == 0


def test_calls_beyond_the_limit_wait_in_the_caller(cluster: Any) -> None:
    with EnvHosts(1, calls=2) as hosts:
        with make_vec(
            "test_ray:Blocking", 6, mode="ray", hosts=hosts, env_kwargs={"seconds": 0.3}
        ) as vec:
            assert isinstance(vec, AsyncVectorEnv)
            vec.reset(seed=0)
            vec.send(["a"] * 6)
            received = vec.recv(at_least=2).indices
            assert len(received) <= 4
            while vec.pending:
                received += vec.recv().indices
            assert sorted(received) == list(range(6))


def test_cancelled_call_passes_its_turn_to_the_next() -> None:
    """Call b is cancelled when it has been woken but has not run, call c while it waits."""

    async def main() -> list[str]:
        host = _Host(SimpleNamespace(ready=SimpleNamespace(remote=lambda: None)))
        done: list[str] = []

        async def call(name: str, then: Callable[[], object] = lambda: None) -> None:
            async with host.turn(1):
                await asyncio.sleep(0.01)
            then()
            done.append(name)

        first = asyncio.ensure_future(call("a", lambda: second.cancel()))
        await asyncio.sleep(0)
        second, third, fourth = (asyncio.ensure_future(call(name)) for name in "bcd")
        await asyncio.sleep(0)
        third.cancel()
        await asyncio.wait({first, second, third, fourth})
        await call("e")
        return done

    assert asyncio.run(asyncio.wait_for(main(), 60)) == ["a", "d", "e"]


def test_vector_replaces_the_environments_of_a_dead_host(cluster: Any) -> None:
    with EnvHosts(2) as hosts, make_vec("test_ray:Misbehaving", 8, mode="ray", hosts=hosts) as vec:
        vec.reset(seed=0)
        batch = vec.step({0: "exit"})
        assert batch.infos[0]["failure"].kind == "EnvDiedError"
        assert math.isnan(batch.rewards[0])
        batch = vec.step(["x"] * 8)
        assert batch.infos[0]["autoreset"]
        failed = [i for i, info in enumerate(batch.infos) if "failure" in info]
        assert all(math.isnan(batch.rewards[i]) for i in failed)
        vec.step(["x"] * 8)
        assert set(vec.step(["x"] * 8).rewards) <= {1.0, 0.0}


def test_failing_constructor_gives_an_environment_error(hosts: EnvHosts) -> None:
    episode = Rollout(RandomPlayer(), make_env=hosts.make_env).run_batch(
        tasks_for("test_ray:FailsToStart", [0])
    )[0]
    assert episode.stop is StopReason.ENV_ERROR
    assert episode.failure is not None
    assert "cannot be made" in episode.failure.message


def test_reset_raises_when_no_host_can_start(cluster: Any) -> None:
    with EnvHosts(1, num_cpus=1000, start_seconds=1.0) as hosts:
        env = hosts.make_env(tasks_for(GUESS, [0])[0])

        async def reset() -> None:
            await env.reset(seed=0)  # type: ignore[misc]

        with pytest.raises(EnvDiedError, match="no host started"):
            asyncio.run(reset())
    with pytest.raises(ConfigError, match="count"):
        EnvHosts(0)


def test_killed_node_loses_no_episode(cluster: Any) -> None:
    """The test adds a node and kills it during a batch."""
    node = retried(lambda: cluster.add_node(num_cpus=4))
    with EnvHosts(3, calls=16, options={"scheduling_strategy": "SPREAD"}, num_cpus=4.0) as hosts:
        wait_for(hosts, 3)
        (doomed,) = [
            host.actor
            for host in hosts._hosts
            if ray.get(host.actor.ready.remote()) == node.node_id
        ]
        tasks = tasks_for("test_ray:Blocking", range(150), env_kwargs={"seconds": 0.02})
        player = ScriptedPlayer(lambda env, observation: f"{observation[-1]} seen")
        finished: list[int] = []

        def on_episode(episode: Any) -> None:
            finished.append(episode.index)
            if len(finished) == 60:
                cluster.remove_node(node, allow_graceful=False)
                wait_for_death(doomed)

        engine = Rollout(
            player,
            make_env=hosts.make_env,
            limits=Limits(retries=3, step_deadline=60.0),
            concurrency=24,
        )
        episodes = engine.run_batch(tasks, on_episode)
        assert hosts.died >= 1
    local = run_batch(tasks, player, concurrency=64)
    assert [e.index for e in episodes] == list(range(150))
    assert not [e for e in episodes if e.failed]
    assert [e.total_reward for e in episodes] == [3.0] * 150
    assert [[(t.action, t.messages) for t in e.turns] for e in episodes] == [
        [(t.action, t.messages) for t in e.turns] for e in local
    ]


def test_code_of_the_vector_page_runs_on_ray(cluster: None) -> None:
    page = (ROOT / "docs" / "vector.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[1], names)
    assert len(names["episodes"]) == 64
    assert not any(episode.failed for episode in names["episodes"])


@pytest.mark.parametrize(
    ("address", "failures", "attempts"),
    [("local", 1, 2), ("local", 9, 3), ("", 9, 3), ("10.0.0.1:6379", 9, 1)],
)
def test_ray_that_does_not_start_is_started_again(
    address: str, failures: int, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def init(**settings: Any) -> None:
        calls.append(settings)
        if len(calls) <= failures:
            raise ConnectionError("the node timed out during startup")

    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray_hosts, "_kill_incomplete_ray", lambda since: None)
    if failures < attempts:
        _start_ray()
    else:
        with pytest.raises(EnvError, match=rf"is {address or 'not set'}\): the node timed out"):
            _start_ray()
    assert len(calls) == attempts


FAILED_START = """
import psutil, ray
from gem_execution.ray_hosts import _start_ray

def fail(*args):
    raise OSError("the node timed out")

ray._private.services.get_node = fail  # Ray calls it when its processes run
try:
    _start_ray(attempts=2)
except Exception as error:
    print(error)
children = psutil.Process().children(recursive=True)
psutil.wait_procs(children, timeout=60)
print("left:", [p.name() for p in children if p.is_running() and p.status() != "zombie"])
"""


def test_failed_start_leaves_no_processes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAILED_START],
        env={**os.environ, "RAY_ADDRESS": "local"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "(RAY_ADDRESS is local): the node timed out" in done.stdout, done.stdout + done.stderr
    assert "attempt 1 of 2" in done.stderr
    assert done.stdout.endswith("left: []\n")
