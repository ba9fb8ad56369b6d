"""An environment in a process of its own behaves like one in this process, and dies alone."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import misbehaving
import pytest
from project import SUPPORT

from gem_core import (
    Limits,
    RandomPlayer,
    Rollout,
    ScriptedPlayer,
    StopReason,
    Task,
    make,
    register,
    tasks_for,
)
from gem_core.env import registry
from gem_core.env.base import Env
from gem_core.errors import (
    ConfigError,
    ContractError,
    DeadlineError,
    EnvDiedError,
    EnvError,
    ResetNeededError,
)
from gem_core.wrappers.limits import TurnLimit
from gem_execution.process import ProcessEnv

GUESS = "game:GuessTheNumber-v0-hard"


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    for name in (
        "Counter",
        "Blocking",
        "Isolated",
        "Misbehaving",
        "MisbehavingIsolated",
        "FailsToStart",
    ):
        register(f"test_process:{name}", f"misbehaving:{name}")
    yield
    for name in (
        "Counter",
        "Blocking",
        "Isolated",
        "Misbehaving",
        "MisbehavingIsolated",
        "FailsToStart",
    ):
        registry.environments.remove(f"test_process:{name}")


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while alive(pid):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def test_it_plays_the_same_episode_as_in_this_process() -> None:
    here, there = make(GUESS), make(GUESS, execution="process")
    try:
        assert isinstance(there.unwrapped, ProcessEnv)
        assert here.reset(seed=5) == there.reset(seed=5)
        while not here.ended:
            action = here.sample_action()
            assert there.sample_action() == action
            assert here.step(action) == there.step(action)
        assert there.ended
        with pytest.raises(ResetNeededError):
            there.step("1")
        assert there.unwrapped.attribute("secret") == here.unwrapped.secret  # type: ignore[attr-defined]
    finally:
        there.close()


def test_options_and_spawn_work_across_the_pipe() -> None:
    with ProcessEnv(misbehaving.Counter, {"length": 9}) as env:
        observation, info = env.reset(seed=1, options={"start": 4})
        assert observation.startswith("start 4")
        assert info["pid"] == env.pid != os.getpid()
        with pytest.raises(ValueError, match="nonsuch"):
            env.reset(seed=1, options={"nonsuch": 1})
        env.reset(seed=1)
        with env.spawn() as twin:
            twin.reset(seed=1)
            assert twin.pid != env.pid  # type: ignore[attr-defined]
            assert twin.step("b") == (*env.step("b")[:4], {"pid": twin.pid})  # type: ignore[attr-defined]
        assert env.action_example == "go"


def test_what_an_action_looks_like_is_told_anew_with_every_episode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    attribute = ProcessEnv.attribute
    monkeypatch.setattr(
        ProcessEnv, "attribute", lambda env, name: asked.append(name) or attribute(env, name)
    )
    name, said = "game:Mastermind-v0-random", set()
    with (
        make(name, wrappers=["boxed"]) as here,
        make(name, wrappers=["boxed"], execution="process") as there,
    ):
        for seed in range(6):
            assert here.reset(seed=seed) == there.reset(seed=seed)
            assert here.action_example == there.action_example
            said.add(here.action_example)
    assert len(said) > 1, "the games were of one length"
    assert not asked, "a reset's answer has it"


@pytest.mark.parametrize(
    ("action", "error", "said"),
    [
        ("raise", ValueError, "told to raise"),
        ("nonsense", ContractError, "must return"),
        ("nan", ContractError, "finite"),
        ("unpicklable", ContractError, "cannot leave its process"),
        ("exit", EnvDiedError, "exit code 3"),
        ("segfault", EnvDiedError, "SIGSEGV"),
        ("hang", DeadlineError, "took over"),
    ],
)
def test_what_goes_wrong_there_is_raised_here(
    action: str, error: type[Exception], said: str
) -> None:
    with ProcessEnv(misbehaving.Misbehaving, deadline=20.0) as env:
        env.reset(seed=0)
        pid = env.pid
        assert pid is not None
        if action == "hang":
            env.deadline = 0.3
        with pytest.raises(error, match=said):
            env.step(action)
        if issubclass(error, (EnvDiedError, DeadlineError)):
            assert gone(pid)
        env.deadline = 20.0
        assert env.reset(seed=0)[0].startswith("start")  # a new process where the old one is gone
    assert env.pid is not None
    assert gone(env.pid)


def test_an_error_that_cannot_travel_is_told_in_words_with_its_traceback() -> None:
    with ProcessEnv(misbehaving.RaisesOdd) as env:
        env.reset(seed=0)
        with pytest.raises(EnvError, match="OddError: odd 1 2") as caught:
            env.step("x")
        assert "in misbehave" in str(caught.value.__cause__)


def test_a_constructor_that_fails_there_fails_the_reset_here() -> None:
    with (
        ProcessEnv(misbehaving.FailsToStart) as env,
        pytest.raises(RuntimeError, match="cannot be made"),
    ):
        env.reset(seed=0)


def test_what_cannot_be_sent_is_refused_at_once() -> None:
    class Local(Env):
        pass

    with pytest.raises(ConfigError, match="top of a module"):
        ProcessEnv(Local)


def test_killing_takes_the_processes_an_environment_started_with_it() -> None:
    env = ProcessEnv(misbehaving.Misbehaving, deadline=60.0)
    env.reset(seed=0)  # starts an interpreter, which takes seconds on a busy machine
    env.deadline = 2.0
    with pytest.raises(DeadlineError):
        env.step("child")
    listed = subprocess.run(
        ["ps", "-eo", "pid,stat,args"], capture_output=True, text=True, check=True
    ).stdout
    assert [
        line for line in listed.splitlines() if "gem-test-grandchild" in line and " Z" not in line
    ] == []


def test_the_process_ends_with_the_program_that_made_it() -> None:
    code = (
        "import misbehaving, os, sys, threading, time\nfrom gem_execution.process import ProcessEnv\n"
        "def hang(env):\n    try:\n        env.step('hang')\n"
        "    except Exception:\n        pass  # a traceback that is printed while Python ends may bring it down\n"
        "if __name__ == '__main__':\n"
        "    env = ProcessEnv(misbehaving.Misbehaving)\n    env.reset(seed=0)\n    print(env.pid, flush=True)\n"
        "    threading.Thread(target=hang, args=(env,), daemon=True).start()\n    time.sleep(0.3)\n"
        "    os.kill(os.getpid(), 9) if sys.argv[1] == 'kill' else None\n"
    )
    for how in ("leave", "kill"):
        path = os.pathsep.join([str(SUPPORT), *sys.path])
        done = subprocess.run(
            [sys.executable, "-c", code, how],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert (done.returncode == 0) is (how == "leave"), done.stderr
        assert gone(int(done.stdout)), how


def test_the_engine_isolates_what_declares_it_and_what_a_task_asks_for() -> None:
    tasks = [
        Task("test_process:Isolated", 1),
        Task("test_process:Counter", 1),
        Task("test_process:Counter", 1, execution="process"),
        Task("1*test_process:Isolated + 1*test_process:Counter", 1, execution="process"),
    ]
    engine = Rollout(RandomPlayer(), concurrency=4)
    episodes = engine.run_batch(tasks)
    pids = [e.turns[0].info["pid"] for e in episodes]
    assert [e.stop for e in episodes] == [StopReason.TERMINATED] * 4
    assert pids[1] == os.getpid()
    assert len({*pids}) == 4
    assert len({e.turns[0].messages for e in episodes}) == 1
    engine.close()
    assert all(gone(pid) for pid in pids if pid != os.getpid())


def test_a_wrapper_stays_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make("test_process:Isolated", wrappers=["turn_limit(max_turns=1)"], execution="declared")
    try:
        assert isinstance(env, TurnLimit)
        env.reset(seed=0)
        assert env.step("x")[3] is True
    finally:
        env.close()


@pytest.mark.parametrize("action", ["hang", "exit", "segfault", "raise"])
def test_one_broken_process_costs_one_episode(action: str) -> None:
    def play(env: Env, observation: str) -> str:
        return action if env.seed == 3 else "x"

    engine = Rollout(
        ScriptedPlayer(play),
        limits=Limits(step_deadline=8.0 if action == "hang" else 60.0),
        concurrency=3,
    )
    episodes = engine.run_batch(tasks_for("test_process:MisbehavingIsolated", range(6)))
    assert [e.seed for e in episodes if e.failed] == [3]
    assert [e.total_reward for e in episodes if not e.failed] == [3.0] * 5
    broken = episodes[3].failure
    assert broken is not None
    assert broken.kind == {"hang": "DeadlineError", "raise": "ValueError"}.get(
        action, "EnvDiedError"
    )


def test_an_environment_that_takes_long_to_make_holds_up_nobody() -> None:
    class Slow(misbehaving.Blocking):
        def __init__(self) -> None:
            time.sleep(1.0)
            super().__init__()

    register("test_process:Slow", Slow)
    try:
        engine = Rollout(RandomPlayer(), concurrency=4)
        ended: list[str] = []

        async def run() -> None:
            tasks = [
                Task("test_process:Slow", 0),
                *(Task("test_process:Counter", i) for i in range(3)),
            ]
            async for episode in engine.stream(tasks):
                ended.append(episode.env_id)

        asyncio.run(run())
        assert ended[-1] == "test_process:Slow"
    finally:
        registry.environments.remove("test_process:Slow")
