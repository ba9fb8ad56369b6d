"""An environment in its own process behaves like a local one, and its failure stays its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

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
NAMES = (
    "Counter",
    "Blocking",
    "Isolated",
    "Misbehaving",
    "MisbehavingIsolated",
    "FailsToStart",
    "SlowToStart",
)


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    for name in NAMES:
        register(f"test_process:{name}", f"misbehaving:{name}")
    yield
    for name in NAMES:
        registry.environments.remove(f"test_process:{name}")


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second if it ends now
        return False


def gone(pid: int, seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while alive(pid):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def test_process_env_plays_the_same_episode_as_a_local_one() -> None:
    local, remote = make(GUESS), make(GUESS, execution="process")
    try:
        assert isinstance(remote.unwrapped, ProcessEnv)
        assert local.reset(seed=5) == remote.reset(seed=5)
        while not local.ended:
            action = local.sample_action()
            assert remote.sample_action() == action
            assert local.step(action) == remote.step(action)
        assert remote.ended
        with pytest.raises(ResetNeededError):
            remote.step("1")
        secret = local.unwrapped.secret  # type: ignore[attr-defined]
        assert remote.unwrapped.attribute("secret") == secret
    finally:
        remote.close()


def test_process_env_supports_options_and_spawn() -> None:
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


def test_reset_updates_the_action_example_without_another_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    attribute = ProcessEnv.attribute
    monkeypatch.setattr(
        ProcessEnv, "attribute", lambda env, name: calls.append(name) or attribute(env, name)
    )
    name, examples = "game:Mastermind-v0-random", set()
    with (
        make(name, wrappers=["boxed"]) as local,
        make(name, wrappers=["boxed"], execution="process") as remote,
    ):
        for seed in range(6):
            assert local.reset(seed=seed) == remote.reset(seed=seed)
            assert local.action_example == remote.action_example
            examples.add(local.action_example)
    assert len(examples) > 1, "all episodes had the same code length"
    assert not calls, "the answer to a reset contains the example"


@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        ("raise", ValueError, "told to raise"),
        ("nonsense", ContractError, "must return"),
        ("nan", ContractError, "finite"),
        ("unpicklable", ContractError, "cannot pickle the result"),
        ("exit", EnvDiedError, "exit code 3"),
        ("segfault", EnvDiedError, "SIGSEGV"),
        ("hang", DeadlineError, "took over"),
    ],
)
def test_errors_in_the_process_are_raised_in_the_caller(
    action: str, error: type[Exception], message: str
) -> None:
    with ProcessEnv(misbehaving.Misbehaving, deadline=60.0) as env:
        env.reset(seed=0)
        pid = env.pid
        assert pid is not None
        if action == "hang":
            env.deadline = 0.3
        with pytest.raises(error, match=message):
            env.step(action)
        if issubclass(error, (EnvDiedError, DeadlineError)):
            assert gone(pid)
        env.deadline = 60.0
        assert env.reset(seed=0)[0].startswith("start")  # in a new process if the old one is gone
    assert env.pid is not None
    assert gone(env.pid)


def test_unpicklable_error_becomes_env_error_with_its_traceback() -> None:
    with ProcessEnv(misbehaving.RaisesOdd) as env:
        env.reset(seed=0)
        with pytest.raises(EnvError, match="OddError: odd 1 2") as caught:
            env.step("x")
        assert "in misbehave" in str(caught.value.__cause__)


def test_reset_raises_the_error_of_the_constructor() -> None:
    with (
        ProcessEnv(misbehaving.FailsToStart) as env,
        pytest.raises(RuntimeError, match="cannot be made"),
    ):
        env.reset(seed=0)


def test_process_env_rejects_an_unpicklable_class() -> None:
    class Local(Env):
        pass

    with pytest.raises(ConfigError, match="top level of an importable module"):
        ProcessEnv(Local)


def test_missed_deadline_also_kills_child_processes() -> None:
    env = ProcessEnv(misbehaving.Misbehaving, deadline=60.0)
    env.reset(seed=0)  # starting the process takes seconds on a busy machine
    env.deadline = 2.0
    with pytest.raises(DeadlineError):
        env.step("child")
    deadline = time.monotonic() + 60
    while (left := grandchildren()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []


def grandchildren() -> list[str]:
    """Return the processes that `Misbehaving` started and that still run."""
    listed = subprocess.run(
        ["ps", "-eo", "pid,stat,args"], capture_output=True, text=True, check=True
    ).stdout
    return [
        line for line in listed.splitlines() if "gem-test-grandchild" in line and " Z" not in line
    ]


PARENT_PROGRAM = """
import os
import sys
import threading
import time

from misbehaving import Misbehaving

from gem_execution.process import ProcessEnv


def hang(env):
    try:
        env.step("hang")
    except Exception:
        pass  # printing a traceback while Python exits may crash it


if __name__ == "__main__":
    env = ProcessEnv(Misbehaving)
    env.reset(seed=0)
    print(env.pid, flush=True)
    threading.Thread(target=hang, args=(env,), daemon=True).start()
    time.sleep(0.3)
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_process_exits_with_its_parent(end: str) -> None:
    path = os.pathsep.join([str(SUPPORT), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", PARENT_PROGRAM, end],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert (done.returncode == 0) is (end == "exit"), done.stderr
    assert gone(int(done.stdout))


def test_engine_uses_a_process_if_the_class_or_the_task_requires_it() -> None:
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


def test_wrappers_stay_in_the_parent_process() -> None:
    env = make("test_process:Isolated", wrappers=["turn_limit(max_turns=1)"], execution="declared")
    try:
        assert isinstance(env, TurnLimit)
        env.reset(seed=0)
        assert env.step("x")[3] is True
    finally:
        env.close()


@pytest.mark.parametrize("action", ["hang", "exit", "segfault", "raise"])
def test_failing_process_fails_only_its_episode(action: str) -> None:
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
    failure = episodes[3].failure
    assert failure is not None
    kinds = {"hang": "DeadlineError", "raise": "ValueError"}
    assert failure.kind == kinds.get(action, "EnvDiedError")


def test_slow_constructor_does_not_delay_other_episodes() -> None:
    others_ended = threading.Event()

    class Slow(misbehaving.Blocking):
        def __init__(self) -> None:
            others_ended.wait(60)
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
                if len(ended) == 3:
                    others_ended.set()

        asyncio.run(run())
        assert ended[-1] == "test_process:Slow"
    finally:
        registry.environments.remove("test_process:Slow")


@pytest.mark.parametrize("name", ["SlowToStart", "Counter"])
def test_start_of_the_process_counts_toward_the_make_deadline(name: str) -> None:
    task = Task(f"test_process:{name}", seed=1, execution="process")
    limits = Limits(make_deadline=0.05, step_deadline=60.0)
    with Rollout(RandomPlayer(), limits=limits) as rollout:
        (episode,) = rollout.run_batch([task])
    assert episode.failure is not None
    assert (episode.failure.kind, episode.failure.where) == ("DeadlineError", "make")


INTERRUPTED = """
import signal, threading
from misbehaving import Misbehaving
from gem_core.errors import ResetNeededError
from gem_execution.process import ProcessEnv

if __name__ == "__main__":
    env = ProcessEnv(Misbehaving)
    env.reset(seed=1)
    main = threading.main_thread().ident
    threading.Timer(0.5, signal.pthread_kill, [main, signal.SIGINT]).start()
    try:
        env.step("hang")
    except KeyboardInterrupt:
        print("interrupted")
    try:
        env.step("a")
    except ResetNeededError:
        print("reset needed")
    print(env.reset(seed=1)[0], env.step("a")[1])
    env.close()
"""


def test_call_after_ctrl_c_does_not_get_the_answer_to_the_interrupted_one(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(INTERRUPTED)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path])}
    done = subprocess.run(
        [sys.executable, str(program)], env=env, capture_output=True, text=True, timeout=120
    )
    lines = done.stdout.splitlines()
    assert lines[:2] == ["interrupted", "reset needed"], done.stdout + done.stderr
    assert lines[2].startswith("start") and lines[2].endswith("1.0")
