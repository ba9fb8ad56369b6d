"""Engine errors: a trainer's own engine that fails ends the run, a bad generation ends its episode."""

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
    """Raises what it is given, call after call, then answers."""

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
def test_an_engine_that_fails_ends_the_run(play: Callable[[Rollout], Any], batched: bool) -> None:
    with pytest.raises(ZeroDivisionError, match="out of memory"):
        play(rollout(Engine(*[ZeroDivisionError("out of memory")] * 9), batched))


def test_an_engine_of_this_process_is_not_asked_again() -> None:
    engine = Engine(*[ZeroDivisionError("out of memory")] * 9)
    with pytest.raises(ZeroDivisionError):
        by_episode(rollout(engine, batched=True, retries=3))
    assert engine.calls == 1
    broken = Engine(*[EngineError("no logprobs")] * 9)
    with pytest.raises(EngineError):
        by_episode(rollout(broken, retries=3))
    assert broken.calls == 1


def test_a_server_is_asked_again() -> None:
    engine = Engine(ConnectionError("gone"), ConnectionError("gone"))
    (episode,) = by_episode(rollout(engine, retries=2))
    assert not episode.failed
    assert episode.attempts == 3


@pytest.mark.parametrize("play", [by_batch, by_episode])
def test_a_bad_generation_ends_its_episode_only(play: Callable[[Rollout], Any]) -> None:
    episodes = play(rollout(Engine(PolicyError("the server aborted this one"))))
    assert [e.stop for e in episodes if e.failed] == [StopReason.POLICY_ERROR]


def test_settings_are_checked_before_they_are_changed() -> None:
    engine = rollout(Engine())
    before = engine.policy
    with pytest.raises(ConfigError, match="concurrency must be"):
        engine.configure(Engine(), concurrency=0)
    assert engine.policy is before
    with pytest.raises(ConfigError, match="policy_errors must be"):
        Rollout(policy_errors="ignore")  # type: ignore[arg-type]


def test_a_policy_with_a_length_of_zero_counts() -> None:
    class Sized(Engine):
        def __len__(self) -> int:
            return 0

    engine, other = rollout(Engine()), Sized()
    engine.configure(other)
    by_batch(engine)
    assert other.calls > 0
