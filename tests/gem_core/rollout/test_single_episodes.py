"""Single episodes: calls of `Rollout.episode` share environments and threads."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from byte_tokenizer import ByteTokenizer
from misbehaving import Blocking

from gem_core import ConfigError, Episode, Limits, Renderer, Rollout, ScriptedPolicy, Task, register
from gem_core.env.registry import environments

MADE: list[Any] = []


class Slow(Blocking):
    """An environment with slow steps."""

    def __init__(self) -> None:
        super().__init__(seconds=0.2)
        MADE.append(self)


@pytest.fixture(autouse=True)
def registered() -> Any:
    register("test:Slow-v0", Slow)
    MADE.clear()
    yield
    environments.remove("test:Slow-v0")


async def play(rollout: Rollout, count: int) -> list[Episode]:
    tokenizer = ByteTokenizer()
    policy, renderer = ScriptedPolicy(lambda _: "1", tokenizer), Renderer(tokenizer)
    tasks = [Task("test:Slow-v0", seed) for seed in range(count)]
    episodes = (
        rollout.episode(task, policy=policy, renderer=renderer, limits=Limits(max_turns=2))
        for task in tasks
    )
    return list(await asyncio.gather(*episodes))


def test_concurrent_episodes_have_a_thread_each() -> None:
    together = threading.Barrier(12, timeout=60)

    class Together(Blocking):
        def on_step(self, action: str) -> Any:
            together.wait()  # raises unless all twelve episodes are in a step
            return super().on_step(action)

    environments.remove("test:Slow-v0")
    register("test:Slow-v0", Together)
    episodes = asyncio.run(play(Rollout(concurrency=1), 12))
    assert all(len(e.turns) == 2 and not e.failed for e in episodes)


def test_environments_are_reused() -> None:
    async def twice() -> None:
        rollout = Rollout()
        await play(rollout, 3)
        await play(rollout, 3)

    asyncio.run(twice())
    assert len(MADE) == 3


def test_an_episode_without_a_policy_raises_config_error() -> None:
    with pytest.raises(ConfigError, match=r"has no policy; pass one to Rollout\(policy, ...\)"):
        asyncio.run(Rollout().episode(Task("test:Slow-v0", 1)))
