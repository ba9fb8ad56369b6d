"""No exception of one environment leaves the vector, and no info of one step changes another."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from functools import partial
from typing import Any

import pytest
from misbehaving import Awaited, Blocking, Counter

from gem_core.env.base import Env
from gem_core.wrappers.formats import Boxed
from gem_execution.process import ProcessEnv
from gem_execution.vector.factory import make_vec


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Panic(BaseException):
    """As pyo3's PanicException: not an Exception."""


ERRORS = [Unprintable, Panic, SystemExit, asyncio.CancelledError]


class Raises:
    """Mixed into an environment: raises `error` in the method `where`, from the second use on."""

    error: type[BaseException] = ValueError
    where = "step"
    resets = 0

    def on_reset(self, options: Any) -> Any:
        self.resets += 1
        if self.where == "reset" or (self.where == "autoreset" and self.resets > 1):
            raise self.error()
        return super().on_reset(options)  # type: ignore[misc]

    def misbehave(self, action: str) -> None:
        if self.where == "step":
            raise self.error()

    def on_close(self) -> None:
        if self.where == "close":
            raise self.error()


class Here(Raises, Counter):
    pass


class Thread(Raises, Blocking):
    pass


class Async(Raises, Awaited):
    async def on_step(self, action: str) -> Any:  # type: ignore[override]
        self.misbehave(action)
        return await super().on_step(action)


def made(cls: Any, error: Any, where: str) -> Env:
    env: Env = cls(length=1 if where == "autoreset" else 3)
    env.error, env.where = error, where  # type: ignore[attr-defined]
    return env


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.parametrize("where", ["reset", "step", "autoreset", "close"])
@pytest.mark.parametrize("cls", [Here, Thread, Async])
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("error", [*ERRORS, ValueError])
def test_an_exception_is_a_failure_of_one_environment(
    error: Any, mode: Any, cls: Any, where: str, autoreset: str
) -> None:
    bad = partial(made, cls, error, where)
    with make_vec([Counter, bad, Counter], mode=mode, autoreset=autoreset) as vec:
        observations, infos = vec.reset(seed=0)
        assert [o[:5] for o in observations[::2]] == ["start"] * 2
        failures = ["failure" in infos[1]]
        for _ in range(2):
            batch = vec.step(["a"] * 3)
            assert batch.rewards[::2] == [1.0, 1.0]
            failures.append(math.isnan(batch.rewards[1]) or "reset_failure" in batch.infos[1])
        assert any(failures) == (where != "close")


@pytest.mark.parametrize("error", [Unprintable, Panic, SystemExit])
def test_a_process_that_raises_is_a_failure_of_one_environment(error: Any) -> None:
    bad = partial(ProcessEnv, partial(made, Here, error, "step"))
    with make_vec([Counter, bad], mode="async") as vec:
        vec.reset(seed=0)
        assert math.isnan(vec.step(["a"] * 2).rewards[1])


def test_keyboard_interrupt_is_raised() -> None:
    with make_vec(partial(made, Here, KeyboardInterrupt, "step"), 1) as vec:
        vec.reset(seed=0)
        with pytest.raises(KeyboardInterrupt):
            vec.step(["a"])


class Shared(Env):
    """Returns the same dictionary every time."""

    execution = "inline"

    def __init__(self) -> None:
        self.info: dict[str, Any] = {}

    def on_reset(self, options: Any) -> Any:
        self.info["resets"] = self.info.get("resets", 0) + 1
        return "T", self.info

    def on_step(self, action: str) -> Any:
        self.info["step"] = action
        return "O", 1.0, self.turn == 1, False, self.info


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_an_environment_may_return_the_same_info_every_time(mode: Any, wrapped: bool) -> None:
    with make_vec(
        (lambda: Boxed(Shared())) if wrapped else Shared, 1, mode=mode, autoreset="same_step"
    ) as vec:
        vec.reset(seed=0)
        for n in range(4):
            (info,) = vec.step([f"\\boxed{{x{n}}}" if wrapped else f"x{n}"]).infos
            ended = n % 2 == 1
            assert ("final_info" in info) == ended
            assert ("final_observation" in info) == ended
            final = info["final_info"] if ended else info
            assert final["step"] == f"x{n}"
            assert final["resets"] == 1 + n // 2
            assert final is not info or not ended
            if wrapped:
                assert final["parsed_action"] == f"x{n}"
                assert "parsed_action" not in info or not ended


class Slow(Blocking):
    """Counts its open instances; its step waits for `go_on`, then raises."""

    opened = 0
    stepping, go_on = threading.Event(), threading.Event()

    def __init__(self) -> None:
        super().__init__(length=3)
        Slow.opened += 1

    def on_step(self, action: str) -> Any:
        self.stepping.set()
        self.go_on.wait(60)
        raise RuntimeError("broken")

    def on_close(self) -> None:
        Slow.opened -= 1


@pytest.mark.parametrize("deadline", [1.0, None])
def test_abandoned_environment_is_not_replaced_after_close(deadline: float | None) -> None:
    Slow.opened = 0
    Slow.stepping.clear()
    Slow.go_on.clear()
    before = set(threading.enumerate())
    vec = make_vec(Slow, 1, mode="async", autoreset="same_step")
    vec.reset(seed=0)
    vec.deadline = deadline
    vec.send(["a"])
    assert Slow.stepping.wait(60)
    if deadline is not None:
        vec.recv()
    vec.close()
    Slow.go_on.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)  # after the step has raised
        assert not thread.is_alive()
    assert Slow.opened == 0


def test_recv_returns_all_results_that_are_ready() -> None:
    with make_vec(Blocking, 5, mode="async") as vec:
        vec.reset(seed=0)
        vec.send(["a"] * 5)
        deadline = time.monotonic() + 30
        while vec._finished.qsize() < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(vec.recv().indices) == 5
