"""Policies: a blocking engine behind concurrent requests, and scripts that stand in for a model."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest
from byte_tokenizer import ByteTokenizer
from scripted_env import AsyncEnv, counts

from gem_core import (
    BatchPolicy,
    ChatPolicy,
    Env,
    FinishReason,
    Generation,
    Limits,
    Player,
    Policy,
    RandomPlayer,
    Renderer,
    Rollout,
    Sampling,
    ScriptedPlayer,
    ScriptedPolicy,
    StopReason,
    tasks_for,
)
from gem_core.errors import ConfigError, PolicyError

WHERE: Any = pytest.mark.parametrize("where", ["thread", "inline"])


class Engine:
    """A blocking generate() for many prompts, which answers each with its own sum."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.before = before
        self.calls: list[list[list[int]]] = []
        self.samplings: list[Sampling] = []
        self.threads: set[str] = set()
        self.at_once = self.most_at_once = 0

    def __call__(self, prompts: list[list[int]], sampling: Sampling) -> Sequence[Generation]:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            self.calls.append(prompts)
            self.samplings.append(sampling)
            self.threads.add(threading.current_thread().name)
            self.before()
            return [Generation((sum(p),) * 3, (-1.0, -2.0, -3.0)) for p in prompts]
        finally:
            self.at_once -= 1

    @property
    def sizes(self) -> list[int]:
        return [len(prompts) for prompts in self.calls]


async def ask(
    policy: BatchPolicy, *prompts: int, live: int | None = None, sampling: Sampling | None = None
) -> list[Any]:
    policy.set_live(live if live is not None else len(prompts))
    waiting = [policy.generate([p], sampling or Sampling()) for p in prompts]
    return await asyncio.gather(*waiting, return_exceptions=True)


@WHERE
def test_requests_of_one_moment_go_into_one_batch(where: Literal["thread", "inline"]) -> None:
    engine = Engine()
    found = asyncio.run(ask(BatchPolicy(engine, where=where), 1, 2, 3, 4))
    assert [g.ids[0] for g in found] == [1, 2, 3, 4], "each request gets its own answer"
    assert engine.sizes == [4]
    assert engine.threads == {"gem-generate" if where == "thread" else threading.main_thread().name}


@WHERE
def test_a_batch_starts_as_soon_as_all_live_episodes_wait(
    where: Literal["thread", "inline"],
) -> None:
    engine = Engine()
    began = time.monotonic()
    asyncio.run(ask(BatchPolicy(engine, where=where, max_wait=30), 1, 2))
    assert time.monotonic() - began < 5
    assert engine.sizes == [2]


@WHERE
def test_a_batch_does_not_wait_for_ever_for_an_episode_that_is_busy(
    where: Literal["thread", "inline"],
) -> None:
    engine = Engine()
    asyncio.run(ask(BatchPolicy(engine, where=where, max_wait=0.02), 1, 2, live=3))
    assert engine.sizes == [2]


@WHERE
def test_an_episode_that_ends_lets_the_others_go(where: Literal["thread", "inline"]) -> None:
    async def main() -> None:
        policy = BatchPolicy(engine, where=where, max_wait=30)
        policy.set_live(3)
        waiting = [asyncio.ensure_future(policy.generate([p], Sampling())) for p in (1, 2)]
        await asyncio.sleep(0.01)
        assert engine.sizes == []
        policy.set_live(2)
        await asyncio.wait_for(asyncio.gather(*waiting), 5)

    engine = Engine()
    asyncio.run(main())
    assert engine.sizes == [2]


@WHERE
def test_a_batch_is_no_larger_than_allowed(where: Literal["thread", "inline"]) -> None:
    engine = Engine()
    found = asyncio.run(
        ask(BatchPolicy(engine, where=where, max_batch=3, max_wait=0.01), *range(8))
    )
    assert [g.ids[0] for g in found] == list(range(8))
    assert max(engine.sizes) == 3
    assert sum(engine.sizes) == 8
    assert engine.most_at_once == 1, "an engine is never called twice at once"


@pytest.mark.parametrize("size", [0, -1, True, 1.5])
def test_a_batch_size_that_means_nothing_is_refused(size: Any) -> None:
    with pytest.raises(ConfigError, match="max_batch"):
        BatchPolicy(Engine(), max_batch=size)
    with pytest.raises(ConfigError, match="where"):
        BatchPolicy(Engine(), where="process")  # type: ignore[arg-type]


@WHERE
@pytest.mark.parametrize("error", [ValueError("out of memory"), SystemExit(1)], ids=repr)
def test_an_error_reaches_every_request_of_its_batch(
    where: Literal["thread", "inline"], error: BaseException
) -> None:
    if where == "inline" and isinstance(error, SystemExit):
        return  # an exit on the caller's own thread is the caller's

    def fail() -> None:
        if len(engine.calls) == 1:
            raise error

    async def main() -> tuple[list[Any], list[Any]]:
        policy = BatchPolicy(engine, where=where)
        return await ask(policy, 1, 2), await ask(policy, 3)

    engine = Engine(fail)
    first, second = asyncio.run(main())
    assert [type(e) for e in first] == [PolicyError, PolicyError]
    assert str(error) in str(first[0])
    assert first[0].__cause__ is error
    assert second[0].ids[0] == 3, "the next batch is none the worse"


@WHERE
def test_a_wrong_number_of_answers_is_an_error(where: Literal["thread", "inline"]) -> None:
    policy = BatchPolicy(lambda prompts, sampling: [Generation((1,))], where=where)
    assert "given 2 prompts and returned 1" in str(asyncio.run(ask(policy, 1, 2))[0])


@WHERE
def test_a_request_that_was_cancelled_waits_no_more(where: Literal["thread", "inline"]) -> None:
    async def main() -> Any:
        policy = BatchPolicy(engine, where=where, max_wait=30)
        policy.set_live(2)
        left = asyncio.ensure_future(policy.generate([1], Sampling()))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.sleep(0)
        stays = asyncio.ensure_future(policy.generate([2], Sampling()))
        await asyncio.sleep(0.01)
        assert engine.sizes == [], "one of two live episodes waits"
        policy.set_live(1)
        return await asyncio.wait_for(stays, 5)

    engine = Engine()
    assert asyncio.run(main()).ids[0] == 2
    assert engine.calls == [[[2]]]


def test_a_request_cancelled_while_it_is_generated_leaves_the_others_alone() -> None:
    gate = threading.Event()

    async def main() -> Any:
        policy = BatchPolicy(Engine(lambda: gate.wait(5) and None), max_wait=0.001)
        policy.set_live(2)
        one, two = (asyncio.ensure_future(policy.generate([p], Sampling())) for p in (1, 2))
        await asyncio.sleep(0.02)
        one.cancel()
        gate.set()
        return await asyncio.wait_for(two, 5)

    assert asyncio.run(main()).ids[0] == 2


@WHERE
def test_requests_that_sample_differently_are_not_mixed(where: Literal["thread", "inline"]) -> None:
    async def main() -> None:
        policy = BatchPolicy(engine, where=where, max_wait=0.01)
        policy.set_live(4)
        hot, cold = Sampling(temperature=1.0), Sampling(temperature=0.5)
        await asyncio.gather(
            *(policy.generate([i], s) for i, s in enumerate((hot, cold, hot, cold)))
        )

    engine = Engine()
    asyncio.run(main())
    assert sorted(engine.calls) == [[[0], [2]], [[1], [3]]]


@WHERE
def test_requests_that_differ_only_in_their_token_cap_share_a_batch(
    where: Literal["thread", "inline"],
) -> None:
    async def main() -> list[Generation]:
        policy = BatchPolicy(engine, where=where)
        policy.set_live(3)
        return await asyncio.gather(
            *(policy.generate([i], Sampling(max_tokens=cap)) for i, cap in enumerate((3, 2, 9), 1))
        )

    engine = Engine()
    found = asyncio.run(main())
    assert engine.sizes == [3]
    assert engine.samplings[0].max_tokens == 9
    assert [(g.ids, g.logprobs, g.finish) for g in found] == [
        ((1, 1, 1), (-1.0, -2.0, -3.0), FinishReason.STOP),
        ((2, 2), (-1.0, -2.0), FinishReason.LENGTH),
        ((3, 3, 3), (-1.0, -2.0, -3.0), FinishReason.STOP),
    ]


def test_environments_go_on_while_a_batch_is_generated_on_its_thread() -> None:
    async def main() -> int:
        policy = BatchPolicy(Engine(lambda: time.sleep(0.1)))
        policy.set_live(1)
        request = asyncio.ensure_future(policy.generate([1], Sampling()))
        ticks = 0
        while not request.done():
            await asyncio.sleep(0.005)
            ticks += 1
        return ticks

    assert asyncio.run(main()) >= 5


def test_a_policy_serves_run_after_run_also_when_one_was_cut_short() -> None:
    """As in a training loop: each run has an event loop of its own."""
    gate = threading.Event()
    engine = Engine(lambda: gate.wait(5) and None)
    policy = BatchPolicy(engine)

    async def cut_short() -> None:
        policy.set_live(1)
        request = asyncio.ensure_future(policy.generate([1], Sampling()))
        await asyncio.sleep(0.05)
        request.cancel()

    asyncio.run(cut_short())
    threading.Timer(0.1, gate.set).start()
    assert asyncio.run(asyncio.wait_for(ask(policy, 2), 5))[0].ids[0] == 2
    assert engine.most_at_once == 1, "the batch that was left behind ends first"


def test_a_rollout_batches_its_episodes() -> None:
    class Uneven(AsyncEnv):
        async def on_step(self, action: str) -> Any:
            n = self.turn + 1
            return f"O{n}", 1.0, n > self.seed % 3, False, {}

    engine = Engine()

    def generate(prompts: list[list[int]], sampling: Sampling) -> Sequence[Generation]:
        engine(prompts, sampling)
        return [Generation((65, 257), (-0.5, -0.5)) for _ in prompts]

    policy = BatchPolicy(generate, max_wait=30)
    rollout = Rollout(
        policy, Renderer(ByteTokenizer()), concurrency=16, make_env=lambda task: Uneven()
    )
    began = time.monotonic()
    episodes = rollout.run_batch(tasks_for("test:Env", range(9)))
    assert time.monotonic() - began < 10, "no batch waited for an episode that had ended"
    assert [len(e.turns) for e in episodes] == [1, 2, 3] * 3
    assert engine.sizes == [9, 6, 3]


def test_a_generation_past_its_deadline_is_failed_and_the_rest_goes_on() -> None:
    slow = threading.Event()

    def generate(prompts: list[list[int]], sampling: Sampling) -> Sequence[Generation]:
        if not slow.is_set():
            slow.set()
            time.sleep(0.3)
        return [Generation((65, 257), (-0.5, -0.5)) for _ in prompts]

    rollout = Rollout(
        BatchPolicy(generate, max_batch=1),
        Renderer(ByteTokenizer()),
        limits=Limits(generate_deadline=0.1, retries=0),
        concurrency=1,
        make_env=lambda task: AsyncEnv(counts),
    )
    stops = [e.stop for e in rollout.run_batch(tasks_for("test:Env", range(5)))]
    assert stops[0] is StopReason.POLICY_DEADLINE
    assert stops[-1] is StopReason.TERMINATED


# Scripts and players.


def test_a_script_of_lines_and_of_a_function() -> None:
    tokenizer = ByteTokenizer()

    async def main() -> None:
        lines = ScriptedPolicy(["hé", Generation((5,))], tokenizer, logprob=-0.25)
        first = await lines.generate([1], Sampling())
        assert first == Generation((104, 0xC3, 0xA9, 257), (-0.25,) * 4, FinishReason.STOP)
        assert await lines.generate([1], Sampling()) == Generation((5,))
        with pytest.raises(PolicyError, match="no more lines"):
            await lines.generate([1], Sampling())
        echo = ScriptedPolicy(lambda prompt: prompt.upper(), tokenizer)
        cut = await echo.generate(
            tokenizer.encode("abc", add_special_tokens=False), Sampling(max_tokens=2)
        )
        assert cut == Generation((65, 66), (-0.5, -0.5), FinishReason.LENGTH)

    asyncio.run(main())


def test_a_player_that_looks_and_one_that_does_not() -> None:
    class Dice(Env):
        def sample_action(self) -> str:
            return "six"

    assert RandomPlayer().act(Dice(), "?") == "six"
    assert ScriptedPlayer(lambda env, observation: observation + "!").act(Dice(), "?") == "?!"


def test_what_a_policy_is_is_told_by_its_method() -> None:
    class Chat:
        async def chat(self, messages: Any, sampling: Any) -> Any: ...

    for thing, kind in (
        (BatchPolicy(Engine()), Policy),
        (Chat(), ChatPolicy),
        (RandomPlayer(), Player),
    ):
        assert [isinstance(thing, k) for k in (Policy, ChatPolicy, Player)] == [
            k is kind for k in (Policy, ChatPolicy, Player)
        ]
