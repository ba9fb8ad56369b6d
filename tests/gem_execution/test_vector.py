"""Vectors have Gymnasium semantics; each environment ends, fails and is replaced on its own."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

import misbehaving
import pytest
from misbehaving import Awaited, Blocking, Counter, Misbehaving
from project import SUPPORT

from gem_core import make
from gem_core.env.base import Env, ResetResult
from gem_core.errors import (
    ActionTypeError,
    ConfigError,
    ContractError,
    ResetNeededError,
    UnknownNameError,
)
from gem_core.types import Failure
from gem_execution.process import ProcessEnv
from gem_execution.vector.async_env import AsyncVectorEnv
from gem_execution.vector.env import VectorEnv
from gem_execution.vector.factory import make_vec

GUESS = "game:GuessTheNumber-v0-hard"
KINDS = [Counter, Blocking, Awaited, partial(ProcessEnv, Counter)]
MODES = ["sync", "async"]


def vector(maker: Any, n: int = 3, mode: str = "async", **kwargs: Any) -> Any:
    return make_vec(maker, n, mode=mode, **kwargs)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS, ids=["inline", "thread", "async", "process"])
def test_every_execution_gives_the_same_episodes_in_every_mode(kind: Any, mode: str) -> None:
    with vector(kind, mode=mode) as vec:
        trace: list[Any] = [vec.reset(seed=10)[0]]
        for number in range(5):
            trace.append(vec.step([f"{number}{i}" for i in range(3)])[:4])
    observations = []
    for i in range(3):
        env = Counter()
        observations.append(env.reset(seed=10 + i)[0])
        if i == 0:
            assert trace[1][0][0] == env.step("00")[0]
    assert trace[0] == observations
    assert len({*trace[0]}) == 3
    assert trace[3][2] == [True] * 3  # the third step ends the episode
    assert trace[4][1] == [0.0] * 3  # the next step resets
    assert trace[5][1] == [1.0] * 3  # and the next one continues
    assert all(o.startswith("start 0") for o in trace[4][0])


@pytest.mark.parametrize("mode", MODES)
def test_next_step_ignores_the_action_and_returns_the_first_observation(mode: str) -> None:
    with vector(lambda: Counter(length=1), mode=mode) as vec:
        first, _ = vec.reset(seed=0)
        last = vec.step(["a"] * 3)
        assert last.terminations == [True] * 3
        assert last.observations[0].startswith("a 1")
        reset = vec.step(["ignored"] * 3)
        assert reset.rewards == [0.0] * 3
        assert reset.terminations == reset.truncations == [False] * 3
        assert all(info["autoreset"] for info in reset.infos)
        assert "ignored" not in reset.observations[0]
        assert reset.observations != first
        assert vec.seeds == [(i + 0x9E3779B9) % 2**32 for i in range(3)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [Counter, Blocking, Awaited], ids=["inline", "thread", "async"])
def test_same_step_keeps_the_final_observation_and_info(kind: Any, mode: str) -> None:
    with vector(partial(kind, length=1), mode=mode, autoreset="same_step") as vec:
        vec.reset(seed=0)
        batch = vec.step(["a"] * 3)
        assert batch.rewards == [1.0] * 3
        assert batch.terminations == [True] * 3
        assert all(o.startswith("start 0") for o in batch.observations)
        assert all(info["final_observation"].startswith("a 1") for info in batch.infos)
        assert all(isinstance(info["final_info"], dict) for info in batch.infos)
        assert vec.step(["b"] * 3).rewards == [1.0] * 3


@pytest.mark.parametrize("mode", MODES)
def test_disabled_autoreset_requires_a_reset_by_the_caller(mode: str) -> None:
    with vector(lambda: Counter(length=1), mode=mode, autoreset="disabled") as vec:
        vec.reset(seed=0)
        vec.step(["a"] * 3)
        with pytest.raises(ResetNeededError, match=r"reset\(indices=\[0\]\)"):
            vec.step(["b"] * 3)
        observations, infos = vec.reset(indices=[2], seed=[7])
        assert observations == [Counter().reset(seed=7)[0]]
        assert len(infos) == 1
        assert vec.step({2: "c"}).rewards == [1.0]


@pytest.mark.parametrize("mode", MODES)
def test_step_of_a_mapping_keeps_its_order(mode: str) -> None:
    with vector(Blocking, 4, mode=mode) as vec:
        vec.reset(seed=0)
        batch = vec.step({3: "x", 1: "y"})
        assert [o[:3] for o in batch.observations] == ["x 1", "y 1"]
        assert [o.split()[1] for o in vec.step(["z"] * 4).observations] == ["1", "2", "1", "2"]
        assert vec.step({}) == ([], [], [], [], [])


@pytest.mark.parametrize("mode", MODES)
def test_autoreset_episodes_do_not_depend_on_other_environments(mode: str) -> None:
    def trace(indices: list[int]) -> list[str]:
        with vector(Blocking, mode=mode, autoreset="same_step") as vec:
            vec.reset(seed=[5, 6, 7])
            return [vec.step(dict.fromkeys(indices, "a")).observations[-1] for _ in range(10)]

    assert trace([0, 1, 2]) == trace([2])


@pytest.mark.parametrize("mode", MODES)
def test_reset_takes_seeds_and_options_per_environment(mode: str) -> None:
    with vector(Counter, mode=mode) as vec:
        observations, _ = vec.reset(seed=[4, None, 4], options=[{"start": 1}, None, {"start": 1}])
        assert observations[0] == observations[2] != observations[1]
        assert vec.reset(seed=1, options={"start": 2})[0][0].startswith("start 2")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("action", "kind"),
    [
        ("raise", "ValueError"),
        ("nonsense", "ContractError"),
        ("nan", "ContractError"),
        ("exit", "EnvDiedError"),
    ],
)
@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
def test_failure_is_data_and_ends_one_episode(
    mode: str, action: str, kind: str, autoreset: str
) -> None:
    maker = partial(ProcessEnv, Misbehaving) if action == "exit" else Misbehaving
    with vector(maker, mode=mode, autoreset=autoreset) as vec:
        vec.reset(seed=0)
        batch = vec.step(["a", action, "a"])
        assert [o[:3] for o in batch.observations[::2]] == ["a 1"] * 2
        assert batch.rewards[::2] == [1.0, 1.0]
        assert math.isnan(batch.rewards[1])
        assert batch.truncations == [False, True, False]
        failure = batch.infos[1]["failure"]
        assert isinstance(failure, Failure)
        assert (failure.kind, failure.where) == (kind, "step")
        if autoreset == "disabled":
            vec.reset(indices=[1])
        elif autoreset == "next_step":
            assert vec.step(["a"] * 3).infos[1]["autoreset"]
        else:
            assert batch.observations[1].startswith("start 0")
            assert "failure" in batch.infos[1]["final_info"]
        assert vec.step({1: "b"}).rewards == [1.0]


def test_failed_reset_is_retried_with_a_new_environment() -> None:
    envs: list[Env] = []

    class FailsTwice(Counter):
        def on_reset(self, options: Any) -> Any:
            if len(envs) < 3:
                raise RuntimeError("not yet")
            return super().on_reset(options)

    def maker() -> Env:
        envs.append(FailsTwice(length=1))
        return envs[-1]

    with vector(maker, 1, autoreset="same_step") as vec:
        observations, infos = vec.reset(seed=0)
        assert observations == [""]
        assert infos[0]["failure"].where == "reset"
        assert math.isnan(vec.step(["a"]).rewards[0])
        assert vec.step(["a"]).infos[0]["autoreset"]
        assert vec.step(["a"]).rewards == [1.0]
        assert len(envs) == 3


@pytest.mark.parametrize(
    ("hanging", "quick"),
    [
        pytest.param(Misbehaving, Blocking, id="thread"),
        pytest.param(partial(Awaited, seconds=3600), Awaited, id="async"),
        pytest.param(partial(ProcessEnv, Misbehaving), partial(ProcessEnv, Counter), id="process"),
    ],
)
def test_environment_that_misses_its_deadline_is_replaced(hanging: Any, quick: Any) -> None:
    with make_vec([quick, hanging, quick], mode="async") as vec:
        assert isinstance(vec, AsyncVectorEnv)
        vec.reset(seed=0)
        vec.send({0: "a", 2: "a"})
        vec.deadline = 1.0  # only of the next step: a busy machine may be slow
        batch = vec.step({1: "hang"})
        assert batch.infos[0]["failure"].kind == "DeadlineError"
        assert math.isnan(batch.rewards[0])
        assert vec.recv(at_least=2).rewards == [1.0, 1.0]
        vec.deadline = None
        assert vec.step({1: "x"}).infos[0]["autoreset"]
        if quick is not Awaited:  # its replacement would hang again
            assert vec.step({1: "x"}).rewards == [1.0]


def test_reset_that_misses_its_deadline_is_reported_as_a_reset() -> None:
    released = threading.Event()

    class SlowReset(Blocking):
        def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
            released.wait(60)
            return super().on_reset(options)

    with make_vec([SlowReset, Blocking], mode="async", deadline=60.0) as vec:
        assert isinstance(vec, AsyncVectorEnv)
        vec.send_reset(seed=0, indices=[1])
        vec.deadline = 1.0
        (info,) = vec.reset(seed=0, indices=[0])[1]
        released.set()
        assert info["failure"].where == "reset"
        assert "reset of" in info["failure"].message
        assert "failure" not in vec.recv().infos[0]


def test_recv_returns_the_results_that_are_ready() -> None:
    released = threading.Event()

    class Slow(Blocking):
        def misbehave(self, action: str) -> None:
            released.wait(60)

    makers: list[Any] = [Slow, Counter, Blocking, Awaited]
    with make_vec(makers, mode="async") as vec:
        assert isinstance(vec, AsyncVectorEnv)
        vec.reset(seed=0)
        vec.send(["a"] * 4)
        received: list[int] = []
        while len(received) < 3:
            received += vec.recv().indices
        assert sorted(received) == [1, 2, 3]
        assert vec.pending == [0]
        vec.send({1: "b", 2: "b"})
        received = []
        while len(received) < 2:
            received += vec.recv().indices
        with pytest.raises(ConfigError, match="were not received"):
            vec.send({0: "b"})
        assert vec.recv(timeout=0.0).indices == []
        released.set()
        slow = vec.recv()
        assert slow.indices == [0]
        assert slow.rewards == [1.0]
        assert vec.recv() == ([], [], [], [], [], [])
        vec.send_reset(indices=[2], seed=3)
        assert vec.recv().observations == [Counter().reset(seed=5)[0]]


def test_step_does_not_return_results_of_send() -> None:
    with make_vec([Blocking, Counter], mode="async") as vec:
        assert isinstance(vec, AsyncVectorEnv)
        vec.reset(seed=0)
        vec.send({1: "a"})
        assert vec.step({0: "b"}).observations[0].startswith("b 1")
        assert vec.recv().observations[0].startswith("a 1")


def test_async_resets_are_concurrent() -> None:
    together = threading.Barrier(8)

    class Slow(Blocking):
        def on_reset(self, options: Any) -> Any:
            together.wait(60)
            return super().on_reset(options)

    with vector(Slow, 8) as vec:
        infos = vec.reset(seed=0)[1]
    assert not any("failure" in info for info in infos)


def test_async_vector_works_inside_a_running_event_loop() -> None:
    async def main() -> list[float]:
        with make_vec([Awaited, Blocking, Counter], mode="async") as vec:
            vec.reset(seed=0)
            rewards: list[float] = vec.step(["a"] * 3).rewards
            return rewards

    assert asyncio.run(main()) == [1.0] * 3


def test_make_vec_applies_wrappers_arguments_and_execution() -> None:
    with make_vec(
        [GUESS, GUESS], wrappers=["turn_limit(max_turns=1)"], env_kwargs=[{}, {"max_number": 60}]
    ) as vec:
        vec.reset(seed=0)
        assert [env.unwrapped.max_number for env in vec.envs if env is not None] == [50, 60]  # type: ignore[attr-defined]
        batch = vec.step(["\\boxed{1}", "\\boxed{1}"])
        assert all(t or u for t, u in zip(batch.terminations, batch.truncations, strict=True))
        assert vec.env_ids == [GUESS, GUESS]
    with make_vec(GUESS, 2, mode="async", execution="process") as vec:
        assert [type(env.unwrapped) for env in vec.envs if env is not None] == [ProcessEnv] * 2
        assert vec.reset(seed=3)[0] == [make(GUESS).reset(seed=3 + i)[0] for i in range(2)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("actions", "error", "message"),
    [
        (["a"], ConfigError, "1 actions for 3"),
        ("abc", ConfigError, "list of 3 actions"),
        ({5: "a"}, ConfigError, "not an index"),
        ({-1: "a"}, ConfigError, "not an index"),
        (["a", 1, "b"], ActionTypeError, "environment 1"),
        (None, ConfigError, "NoneType"),
    ],
)
def test_step_rejects_wrong_actions_before_the_first_step(
    mode: str, actions: Any, error: type[Exception], message: str
) -> None:
    with vector(Counter, mode=mode) as vec:
        vec.reset(seed=0)
        with pytest.raises(error, match=message):
            vec.step(actions)
        assert [env.turn for env in vec.envs] == [0, 0, 0]


def test_make_vec_and_reset_reject_wrong_arguments() -> None:
    with vector(Counter, mode="sync") as vec, pytest.raises(ResetNeededError):
        vec.step(["a"] * 3)
    for kwargs, message in [
        ({"ids": []}, "at least one"),
        ({"ids": GUESS, "num_envs": 0}, "at least one"),
        ({"ids": [GUESS], "num_envs": 2}, "remove num_envs"),
        ({"ids": GUESS, "autoreset": "later"}, "next_step"),
        ({"ids": GUESS, "mode": "both"}, "'sync', 'async' or 'ray'"),
        ({"ids": GUESS, "deadline": 1.0}, "mode='async'"),
        ({"ids": GUESS, "max_turns": 3}, "env_kwargs"),
        ({"ids": GUESS, "num_envs": 2, "env_kwargs": [{}]}, "2 environments and 1 env_kwargs"),
        ({"ids": GUESS, "env_kwargs": {"nonsuch": 1}}, "nonsuch"),
    ]:
        with pytest.raises(ConfigError, match=message):
            make_vec(**kwargs)  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError):
        make_vec("game:Nonsuch")
    with vector(Counter) as vec:
        for bad, message in [
            ({"seed": -1}, "0 or more"),
            ({"seed": [1]}, "1 seeds"),
            ({"indices": [9]}, "not an index"),
            ({"indices": [0, 0]}, "twice"),
        ]:
            with pytest.raises(ConfigError, match=message):
                vec.reset(**bad)


def closing(closed: list[str]) -> tuple[type[Env], type[Env]]:
    """A blocking and an async environment that note when they are closed."""

    class Closing(Blocking):
        def on_close(self) -> None:
            closed.append("thread")

    class ClosingAsync(Awaited):
        async def on_close(self) -> None:  # type: ignore[override]
            closed.append("async")

    return Closing, ClosingAsync


def test_close_closes_every_environment_once() -> None:
    closed: list[str] = []

    blocking, awaited = closing(closed)

    class ClosingInline(Counter):
        def on_close(self) -> None:
            closed.append("inline")

    for mode in MODES:
        vec: VectorEnv = make_vec([blocking, awaited, ClosingInline], mode=mode)  # type: ignore[arg-type]
        vec.reset(seed=0)
        vec.close()
        vec.close()
        assert sorted(closed) == ["async", "inline", "thread"]
        closed.clear()


@pytest.mark.parametrize("kind", [Counter, Blocking, Awaited])
@pytest.mark.parametrize("mode", MODES)
def test_closed_vector_raises(kind: Any, mode: Any) -> None:
    vec: Any = make_vec(kind, 2, mode=mode)
    vec.reset(seed=0)
    vec.close()
    calls = [lambda: vec.step(["a", "a"]), lambda: vec.reset(seed=0)]
    if mode == "async":
        calls += [lambda: vec.send(["a", "a"]), vec.send_reset, vec.recv]
    for call in calls:
        with pytest.raises(ResetNeededError, match="the vector is closed"):
            call()


@pytest.mark.parametrize("mode", MODES)
def test_constructor_that_raises_closes_the_environments_it_made(mode: Any) -> None:
    closed: list[str] = []

    blocking, awaited = closing(closed)

    def broken() -> Env:
        raise OSError("no display")

    with pytest.raises(OSError, match="no display"):
        make_vec([blocking, awaited, broken, blocking], mode=mode)
    assert sorted(closed) == ["async", "thread"]


HANGING_PROGRAM = """
import sys
from functools import partial

from misbehaving import Awaited, Misbehaving

from gem_core import make_vec
from gem_execution.process import ProcessEnv

if __name__ == "__main__":
    envs = [Misbehaving, partial(Awaited, seconds=3600), partial(ProcessEnv, Misbehaving)]
    vec = make_vec(envs, mode="async")
    vec.reset(seed=0)
    vec.send(["hang"] * 3)
    print(vec.recv(timeout=0.5).indices)
    if sys.argv[1] == "close":
        vec.close()
    print("end", flush=True)
"""


@pytest.mark.parametrize("end", ["close", "exit"])
def test_program_exits_while_environments_hang(end: str) -> None:
    path = os.pathsep.join([str(SUPPORT), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", HANGING_PROGRAM, end],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[]", "end"]
    assert done.stderr == ""


def test_test_environments_declare_their_execution() -> None:
    environments = (Counter, Blocking, misbehaving.Isolated)
    assert [env.execution for env in environments] == ["inline", "thread", "process"]


@pytest.mark.parametrize("extra", [-1, 1])
def test_step_rejects_a_patched_step_with_the_wrong_number_of_values(extra: int) -> None:
    """`Env.step` checks the result of `on_step`, but a patched `step` bypasses the check."""

    class Patched(Counter):
        pass

    def step(self: Patched, action: str) -> Any:
        result = Counter.step(self, action)
        return result[:4] if extra < 0 else (*result, "more")

    # a class body that overrides step() raises
    Patched.step = step  # type: ignore[method-assign, assignment]

    with make_vec([Counter, Patched, Counter], mode="sync") as vec:  # type: ignore[arg-type]
        vec.reset(seed=0)
        with pytest.raises(ContractError, match="must return"):
            vec.step(["1", "1", "1"])
