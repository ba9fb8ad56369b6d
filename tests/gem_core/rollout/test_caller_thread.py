"""Caller's thread: generation runs on it while a second thread plays the episodes."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from byte_tokenizer import ByteTokenizer
from project import SUPPORT

from gem_core import (
    BatchPolicy,
    Env,
    Generation,
    Limits,
    Renderer,
    Rollout,
    Sampling,
    StopReason,
    tasks_for,
)
from gem_core.errors import PolicyError
from gem_core.rollout.caller_thread import CallersThread
from gem_core.types import Episode, Task

END = ByteTokenizer().eos_token_id


class Awaited(Env):
    """An async environment of two steps, each of which sleeps twelve times."""

    def on_reset(self, options: Any) -> Any:
        return "T", {}

    async def on_step(self, action: str) -> Any:  # type: ignore[override]
        for _ in range(4):
            await asyncio.sleep(0.01)
        return "O", 1.0, self.turn == 1, False, {}


def rollout(generate: Any, **limits: Any) -> Rollout:
    return Rollout(
        BatchPolicy(generate),
        Renderer(ByteTokenizer()),
        sampling=Sampling(max_tokens=8),
        limits=Limits(**limits),
        make_env=lambda task: Awaited(),
    )


def test_generation_runs_on_this_thread_while_environments_continue() -> None:
    """A slow generation does not count towards the deadline of a concurrent step."""
    caller, on = CallersThread(), []

    def generate(prompts: list[list[int]], sampling: Sampling) -> list[Generation]:
        on.append(threading.current_thread())
        if len(on) > 1:
            time.sleep(4.0)
        return [Generation((65, END), (-0.1, -0.1)) for _ in prompts]

    with rollout(
        lambda prompts, sampling: caller.call(generate, prompts, sampling), step_deadline=3.0
    ) as engine:
        # the generation of one task overlaps the steps of the other
        tasks = [Task("test:Env", 1), Task("test:Env", 2)]
        episodes = caller.run(lambda: engine.run_batch(tasks), engine.stop)
    assert [e.stop for e in episodes] == [StopReason.TERMINATED] * 2
    assert set(on) == {threading.current_thread()}


def test_an_exception_in_generation_fails_the_episodes() -> None:
    caller = CallersThread()

    def generate(prompts: list[list[int]], sampling: Sampling) -> list[Generation]:
        raise RuntimeError("out of memory")

    with rollout(lambda prompts, sampling: caller.call(generate, prompts, sampling)) as engine:
        episodes = caller.run(
            lambda: engine.run_batch(tasks_for("test:Env", range(3))), engine.stop
        )
    assert all(
        e.stop is StopReason.POLICY_ERROR and "out of memory" in str(e.failure) for e in episodes
    )


def test_run_raises_the_exceptions_of_the_work() -> None:
    def work() -> None:
        raise KeyError("work")

    with pytest.raises(KeyError, match="work"):
        CallersThread().run(work, lambda: None)


@pytest.mark.parametrize("error", [True, False])
def test_an_endless_rollout_advances_only_while_it_is_served(error: bool) -> None:
    caller = CallersThread()
    caller.stop()  # nothing has started
    on: list[threading.Thread] = []
    episodes: list[Episode] = []

    def generate(prompts: list[list[int]], sampling: Sampling) -> list[Generation]:
        on.append(threading.current_thread())
        return [Generation((65, END), (-0.1, -0.1)) for _ in prompts]

    engine = rollout(lambda prompts, sampling: caller.call(generate, prompts, sampling))
    engine.configure(concurrency=2)

    async def play() -> None:
        async for episode in engine.stream(Task("test:Env", seed) for seed in count()):
            caller.post(episodes.append, episode)

    caller.start(lambda: asyncio.run(play()), engine.stop)
    caller.serve_until(lambda: len(episodes) >= 3)
    calls, finished = len(on), len(episodes)
    time.sleep(0.6)  # two episodes take as long
    assert (len(on), len(episodes)) == (calls, finished)
    caller.serve_until(lambda: len(episodes) >= finished + 4)
    assert set(on) == {threading.current_thread()}
    assert len({e.seed for e in episodes}) == len(episodes)
    if error:  # an error on this thread stops the rollout
        caller.post(lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            caller.serve_until(lambda: False)
    else:
        caller.stop()
    assert "gem-rollout" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(PolicyError, match="stopped"):
        caller.serve_until(lambda: False)


def test_serve_until_raises_the_engines_exception_every_time() -> None:
    def generate(prompts: list[list[int]], sampling: Sampling) -> list[Generation]:
        raise RuntimeError("out of memory")

    caller = CallersThread()
    engine = rollout(lambda prompts, sampling: caller.call(generate, prompts, sampling))
    engine.policy_errors = "raise"
    caller.start(lambda: engine.run_batch(tasks_for("test:Env", range(3))), engine.stop)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of memory"):
            caller.serve_until(lambda: False)


def test_serve_until_raises_if_the_work_ends_early() -> None:
    caller = CallersThread()
    caller.start(lambda: None, lambda: None)
    with pytest.raises(PolicyError, match="has ended"):
        caller.serve_until(lambda: False)
    caller.serve_until(lambda: True)


def test_ctrl_c_during_a_generation_ends_the_program() -> None:
    program = textwrap.dedent(
        """
        import sys, time
        from test_caller_thread import CallersThread, rollout, tasks_for
        caller = CallersThread()
        def generate(prompts, sampling):
            print("generating", flush=True)
            time.sleep(60)
        engine = rollout(lambda p, s: caller.call(generate, p, s))
        try:
            caller.run(lambda: engine.run_batch(tasks_for("test:Env", range(3))), engine.stop)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            sys.exit(130)
        """
    )
    path = [str(Path(__file__).parent), str(SUPPORT), *sys.path]
    process = subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{program}"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "generating\n"
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert ("interrupted" in output, process.returncode) == (True, 130)
    assert time.monotonic() - began < 9, "the rollout ended only when the join timed out"
