"""Every task yields exactly one episode, whatever one environment or policy raises."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import threading
import time
from typing import Any

import pytest
from byte_tokenizer import ByteTokenizer
from scripted_env import AsyncEnv, ScriptedEnv, counts

from gem_core import Env, Failure, Generation, Limits, Renderer, Rollout, StopReason, Task

TASKS = [Task("test:Scripted-v0", seed=i) for i in range(6)]
BAD = 3


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Panic(BaseException):
    """As pyo3's PanicException: not an Exception."""


class UnprintablePanic(Panic):
    __str__ = Unprintable.__str__


ERRORS = [Unprintable, Panic, UnprintablePanic, SystemExit, asyncio.CancelledError]


class Player:
    def act(self, env: Env, observation: str) -> str:
        return "go"


def raising(error: type[BaseException]) -> Any:
    def call(*_: Any) -> Any:
        raise error()

    return call


def play(make_env: Any, policy: Any = None, renderer: Any = None, **kwargs: Any) -> list[Any]:
    """Play six tasks; a close that fails must not lose the episodes."""
    with Rollout(policy or Player(), renderer, make_env=make_env, **kwargs) as rollout:
        episodes = rollout.run_batch(TASKS)
    assert [episode.seed for episode in episodes] == list(range(6))
    return episodes


def assert_only_the_bad_one_failed(episodes: list[Any]) -> None:
    assert [episode.failed for episode in episodes] == [i == BAD for i in range(6)]
    assert episodes[BAD].failure.kind


@pytest.mark.parametrize("where", ["reset", "step"])
@pytest.mark.parametrize("kind", ["inline", "thread", "async"])
@pytest.mark.parametrize("error", ERRORS)
def test_an_environment_fails_only_its_own_episode(error: Any, kind: str, where: str) -> None:
    def make_env(task: Task) -> Env:
        functions: dict[str, Any] = {}
        if task.seed == BAD:
            functions = {"answer" if where == "step" else "begin": raising(error)}
        if kind == "async":
            return AsyncEnv(**functions)
        return ScriptedEnv(**functions, execution=kind)

    assert_only_the_bad_one_failed(play(make_env))


@pytest.mark.parametrize("error", ERRORS)
def test_a_policy_fails_only_its_own_episode(error: Any) -> None:
    class Failing:
        async def generate(self, prompt_ids: Any, sampling: Any) -> Generation:
            await asyncio.sleep(0)
            if prompt_ids[-1] == ord(str(BAD)):
                raise error()
            return Generation((65,), (-1.0,))

    def make_env(task: Task) -> Env:
        return ScriptedEnv(begin=lambda env: (str(env.seed), {}))

    class Plain(ByteTokenizer):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            return super().encode(text.rstrip("\n"), add_special_tokens=add_special_tokens)

    assert_only_the_bad_one_failed(play(make_env, Failing(), Renderer(Plain("none"))))


@pytest.mark.parametrize("kind", ["inline", "thread", "async"])
@pytest.mark.parametrize("error", [*ERRORS[:-1], ValueError])
def test_a_close_that_raises_loses_no_episode(error: Any, kind: str) -> None:
    class Closing(ScriptedEnv):
        on_close = raising(error)

    class AsyncClosing(AsyncEnv):
        async def on_close(self) -> None:  # type: ignore[override]
            raise error()

    def make_env(task: Task) -> Env:
        answer = raising(ValueError) if task.seed == BAD else counts
        return AsyncClosing(answer) if kind == "async" else Closing(answer, execution=kind)

    assert_only_the_bad_one_failed(play(make_env))


@pytest.mark.parametrize("where", ["reset", "step"])
def test_an_info_that_cannot_be_read_fails_only_its_own_episode(where: str) -> None:
    class Evil(dict[str, Any]):
        def get(self, *_: Any) -> Any:
            raise ValueError

        items = __iter__ = keys = get  # type: ignore[assignment]

    def make_env(task: Task) -> Env:
        if task.seed != BAD:
            return ScriptedEnv()
        if where == "reset":
            return ScriptedEnv(begin=lambda env: ("T", Evil(a=1)))
        return ScriptedEnv(lambda env, action: ("O", 1.0, False, False, Evil(a=1)))

    episodes = play(make_env)
    assert_only_the_bad_one_failed(episodes)
    assert episodes[BAD].stop is StopReason.ENV_INVALID


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"suffix": ["a"]}, "info['suffix'] must be a str, got ['a']"),
        ({"context": "text"}, "info['context'] must be a Context, got 'text'"),
        (
            {"role": "usr"},
            "info['role'] must be one of ('user', 'tool', 'continuation'), got 'usr'",
        ),
    ],
)
@pytest.mark.parametrize("where", ["reset", "step", "last step"])
def test_a_wrong_key_for_the_engine_fails_only_its_own_episode(
    info: dict[str, Any], expected: str, where: str
) -> None:
    def make_env(task: Task) -> Env:
        if task.seed != BAD:
            return ScriptedEnv()
        if where == "reset":
            return ScriptedEnv(begin=lambda env: ("T", info))
        return ScriptedEnv(lambda env, action: ("O", 1.0, where == "last step", False, info))

    episodes = play(make_env)
    assert_only_the_bad_one_failed(episodes)
    assert episodes[BAD].stop is StopReason.ENV_INVALID
    assert episodes[BAD].failure.message == expected


@pytest.mark.parametrize(("key", "kind"), [("system", "str"), ("function_calling", "dict")])
def test_a_wrong_key_that_the_engine_reads_at_a_reset_may_be_in_a_step(key: str, kind: str) -> None:
    def make_env(task: Task) -> Env:
        if task.seed == BAD:
            return ScriptedEnv(begin=lambda env: ("T", {key: 5}))
        return ScriptedEnv(lambda env, action: ("O", 1.0, True, False, {key: 5}))

    episodes = play(make_env)
    assert [e.failed for e in episodes] == [seed == BAD for seed in range(6)]
    assert episodes[BAD].failure.message == f"info[{key!r}] must be a {kind}, got 5"


def test_an_environment_cannot_change_the_options_of_its_task() -> None:
    class Eats(ScriptedEnv):
        def on_reset(self, options: Any) -> Any:
            return f"{options['start'].pop()}", {}

    task = Task("test:Scripted-v0", seed=0, options={"start": ["a", "b"]})
    with Rollout(Player(), make_env=lambda task: Eats()) as rollout:
        episodes = [rollout.run_batch([task])[0] for _ in range(2)]
    assert [e.turns[0].messages[0].content for e in episodes] == ["b", "b"]
    assert [dict(e.options) for e in episodes] == [{"start": ["a", "b"]}] * 2


def test_a_failure_has_its_traceback_and_parses_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[Any] = []  # CPython 3.11.7 cannot parse in two threads at once
    try:
        try:
            int("first") + 1
        except ValueError as first:
            raise KeyError("second") from first
    except KeyError as error:
        with monkeypatch.context() as patch:
            patch.setattr(ast, "parse", lambda source, *_, **__: parsed.append(source))
            failure = Failure.from_error(error, "step")
    assert (failure.kind, failure.message, parsed) == ("KeyError", "'second'", [])
    before, after = failure.traceback.split("The above exception was the direct cause")
    assert 'int("first") + 1' in before and "ValueError: invalid literal" in before
    assert 'raise KeyError("second") from first' in after and "KeyError: 'second'" in after


def test_an_info_that_changes_later_does_not_change_earlier_turns() -> None:
    class Shared(ScriptedEnv):
        def on_step(self, action: str) -> Any:
            self.info: dict[str, Any] = vars(self).setdefault("info", {"seen": [], "at": {}})
            self.info["seen"].append(self.turn)
            self.info["at"]["turn"] = self.turn
            return "O", 0.0, self.turn == 2, False, self.info

    episode = play(lambda task: Shared())[0]
    assert [turn.info for turn in episode.turns] == [
        {"seen": list(range(n + 1)), "at": {"turn": n}} for n in range(3)
    ]
    assert episode.final_info == {"seen": [0, 1, 2], "at": {"turn": 2}}


def test_an_info_may_contain_itself() -> None:
    cycle: dict[str, Any] = {"a": 1}
    cycle["self"] = [cycle]
    episodes = play(lambda task: ScriptedEnv(begin=lambda env: ("T", cycle)))
    assert not any(episode.failed for episode in episodes)


def test_a_hanging_close_takes_no_thread_from_healthy_episodes() -> None:
    let_go = threading.Event()

    class Hanging(ScriptedEnv):
        def on_close(self) -> None:
            let_go.wait(30)

    def make_env(task: Task) -> Env:
        if task.seed is not None and task.seed < 3:
            return Hanging(raising(ValueError), execution="thread")
        return ScriptedEnv(execution="thread")

    try:
        episodes = play(make_env, concurrency=2, limits=Limits(step_deadline=2.0))
    finally:
        let_go.set()
    assert [episode.failed for episode in episodes] == [True] * 3 + [False] * 3


def test_idle_environments_are_closed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gem_core.rollout.env_pool._SECONDS_TO_CLOSE", 1.0)
    let_go = threading.Event()

    class Hanging(ScriptedEnv):
        def on_close(self) -> None:
            let_go.wait(30)

    rollout = Rollout(Player(), make_env=lambda task: Hanging(execution="thread"))
    assert not any(episode.failed for episode in rollout.run_batch(TASKS))
    began = time.monotonic()
    rollout.close()
    assert time.monotonic() - began < 5
    let_go.set()


class Swallows(AsyncEnv):
    """Ignores that its step is cancelled."""

    stepping = threading.Event()

    async def on_step(self, action: str) -> Any:  # type: ignore[override]
        self.stepping.set()
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_step_that_ignores_cancellation_does_not_hold_up_the_batch(
    monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    monkeypatch.setattr("gem_core.rollout.interrupt.SECONDS_TO_CANCEL", 0.3)
    monkeypatch.setattr("gem_core.rollout.engine.SECONDS_TO_CANCEL", 0.3)

    def make_env(task: Task) -> Env:
        return Swallows() if task.seed == BAD else ScriptedEnv()

    limits = Limits(step_deadline=None if stopped else 0.2)
    results: list[Any] = []
    rollout = Rollout(Player(), make_env=make_env, limits=limits)
    others = threading.Semaphore(0)

    def run() -> None:
        results.extend(rollout.run_batch(TASKS, on_episode=lambda e: others.release()))

    Swallows.stepping.clear()
    batch = threading.Thread(target=run, daemon=True)
    batch.start()
    if stopped:
        assert Swallows.stepping.wait(30)
        assert all(others.acquire(timeout=30) for _ in range(len(TASKS) - 1))
        rollout.stop()
    batch.join(30)
    assert not batch.is_alive()
    assert_only_the_bad_one_failed(results)
    expected = StopReason.CANCELLED if stopped else StopReason.ENV_DEADLINE
    assert results[BAD].stop is expected
