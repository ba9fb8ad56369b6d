"""Engine errors: a failing engine ends the run; a failing generation fails its episode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from byte_tokenizer import ByteTokenizer

from gem_core import (
    BatchPolicy,
    ConfigError,
    EngineError,
    FinishReason,
    Generation,
    Limits,
    PolicyError,
    Renderer,
    Rollout,
    StopReason,
    tasks_for,
)

GAME = "game:GuessTheNumber-v0-easy"


class Engine:
    """An engine that raises the listed errors one by one, then generates."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.calls = list(errors), 0

    def answer(self) -> Generation:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return Generation((ord("5"), ByteTokenizer().eos_token_id), (-0.5, -0.5), FinishReason.STOP)

    async def generate(self, prompt_ids: Any, sampling: Any) -> Generation:
        return self.answer()


def rollout(engine: Engine, batched: bool = False, retries: int = 0, **kwargs: Any) -> Rollout:
    policy: Any = engine
    if batched:
        policy = BatchPolicy(
            lambda prompts, sampling: [engine.answer() for _ in prompts], retry=False
        )
    return Rollout(
        policy,
        Renderer(ByteTokenizer()),
        limits=Limits(retries=retries),
        policy_errors="raise",
        **kwargs,
    )


def by_batch(rollout: Rollout) -> Any:
    return rollout.run_batch(tasks_for(GAME, range(3)))


def by_episode(rollout: Rollout) -> Any:
    return [asyncio.run(rollout.episode(tasks_for(GAME, [0])[0]))]


@pytest.mark.parametrize("play", [by_batch, by_episode])
@pytest.mark.parametrize("batched", [False, True])
def test_an_engine_failure_ends_the_run(play: Callable[[Rollout], Any], batched: bool) -> None:
    with pytest.raises(ZeroDivisionError, match="out of memory"):
        play(rollout(Engine(*[ZeroDivisionError("out of memory")] * 9), batched))


def test_an_in_process_engine_is_not_retried() -> None:
    engine = Engine(*[ZeroDivisionError("out of memory")] * 9)
    with pytest.raises(ZeroDivisionError):
        by_episode(rollout(engine, batched=True, retries=3))
    assert engine.calls == 1
    fatal = Engine(*[EngineError("no logprobs")] * 9)
    with pytest.raises(EngineError):
        by_episode(rollout(fatal, retries=3))
    assert fatal.calls == 1


def test_a_server_is_retried() -> None:
    engine = Engine(ConnectionError("gone"), ConnectionError("gone"))
    (episode,) = by_episode(rollout(engine, retries=2))
    assert not episode.failed
    assert episode.attempts == 3


@pytest.mark.parametrize("play", [by_batch, by_episode])
def test_a_policy_error_fails_only_its_own_episode(play: Callable[[Rollout], Any]) -> None:
    episodes = play(rollout(Engine(PolicyError("the server aborted this one"))))
    assert [e.stop for e in episodes if e.failed] == [StopReason.POLICY_ERROR]


def test_configure_rejects_invalid_settings_without_changing_any() -> None:
    engine = rollout(Engine())
    before = engine.policy
    with pytest.raises(ConfigError, match="concurrency must be"):
        engine.configure(Engine(), concurrency=0)
    assert engine.policy is before
    with pytest.raises(ConfigError, match="policy_errors must be"):
        Rollout(policy_errors="ignore")  # type: ignore[arg-type]


def test_configure_accepts_a_falsy_policy() -> None:
    class Sized(Engine):
        def __len__(self) -> int:
            return 0

    engine, other = rollout(Engine()), Sized()
    engine.configure(other)
    by_batch(engine)
    assert other.calls > 0
