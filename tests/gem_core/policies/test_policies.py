"""Policies: batching for a blocking engine, scripted policies and players."""

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
    """A blocking generate() whose ids are the sum of each prompt."""

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
def test_simultaneous_requests_share_a_batch(where: Literal["thread", "inline"]) -> None:
    engine = Engine()
    generations = asyncio.run(ask(BatchPolicy(engine, where=where), 1, 2, 3, 4))
    assert [g.ids[0] for g in generations] == [1, 2, 3, 4], "each request gets its own generation"
    assert engine.sizes == [4]
    assert engine.threads == {"gem-generate" if where == "thread" else threading.main_thread().name}


@WHERE
def test_a_batch_starts_when_all_live_episodes_wait(
    where: Literal["thread", "inline"],
) -> None:
    engine = Engine()
    began = time.monotonic()
    asyncio.run(ask(BatchPolicy(engine, where=where, max_wait=30), 1, 2))
    assert time.monotonic() - began < 5
    assert engine.sizes == [2]


@WHERE
def test_a_batch_starts_after_max_wait_without_busy_episodes(
    where: Literal["thread", "inline"],
) -> None:
    engine = Engine()
    asyncio.run(ask(BatchPolicy(engine, where=where, max_wait=0.02), 1, 2, live=3))
    assert engine.sizes == [2]


@WHERE
def test_a_batch_starts_when_an_episode_ends(
    where: Literal["thread", "inline"],
) -> None:
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
def test_a_batch_has_at_most_max_batch_requests(where: Literal["thread", "inline"]) -> None:
    engine = Engine()
    generations = asyncio.run(
        ask(BatchPolicy(engine, where=where, max_batch=3, max_wait=0.01), *range(8))
    )
    assert [g.ids[0] for g in generations] == list(range(8))
    assert max(engine.sizes) == 3
    assert sum(engine.sizes) == 8
    assert engine.most_at_once == 1, "calls of the engine do not overlap"


@pytest.mark.parametrize("size", [0, -1, True, 1.5])
def test_batch_policy_rejects_invalid_arguments(size: Any) -> None:
    with pytest.raises(ConfigError, match="max_batch"):
        BatchPolicy(Engine(), max_batch=size)
    with pytest.raises(ConfigError, match="where"):
        BatchPolicy(Engine(), where="process")  # type: ignore[arg-type]


def test_an_engine_error_without_a_message_reaches_the_request() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise ValueError

    def fail(prompts: Any, sampling: Any) -> Any:
        raise Unprintable

    with pytest.raises(PolicyError, match="Unprintable has no message"):
        asyncio.run(asyncio.wait_for(BatchPolicy(fail).generate([1], Sampling()), 5))


@WHERE
@pytest.mark.parametrize("error", [ValueError("out of memory"), SystemExit(1)], ids=repr)
def test_an_exception_reaches_every_request_of_its_batch(
    where: Literal["thread", "inline"], error: BaseException
) -> None:
    if where == "inline" and isinstance(error, SystemExit):
        return  # an inline exit ends the caller's thread

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
    assert second[0].ids[0] == 3, "the next batch works"


@WHERE
def test_a_wrong_number_of_generations_raises(where: Literal["thread", "inline"]) -> None:
    policy = BatchPolicy(lambda prompts, sampling: [Generation((1,))], where=where)
    assert "got 1 for 2 prompts" in str(asyncio.run(ask(policy, 1, 2))[0])


@WHERE
def test_a_cancelled_request_leaves_the_queue(where: Literal["thread", "inline"]) -> None:
    async def main() -> Any:
        policy = BatchPolicy(engine, where=where, max_wait=30)
        policy.set_live(2)
        cancelled = asyncio.ensure_future(policy.generate([1], Sampling()))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.sleep(0)
        remaining = asyncio.ensure_future(policy.generate([2], Sampling()))
        await asyncio.sleep(0.01)
        assert engine.sizes == [], "only one of two live episodes waits"
        policy.set_live(1)
        return await asyncio.wait_for(remaining, 5)

    engine = Engine()
    assert asyncio.run(main()).ids[0] == 2
    assert engine.calls == [[[2]]]


def test_cancelling_a_running_request_does_not_affect_its_batch() -> None:
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
def test_requests_with_different_sampling_go_into_separate_batches(
    where: Literal["thread", "inline"],
) -> None:
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
def test_requests_with_different_max_tokens_share_a_batch(
    where: Literal["thread", "inline"],
) -> None:
    async def main() -> list[Generation]:
        policy = BatchPolicy(engine, where=where)
        policy.set_live(3)
        return await asyncio.gather(
            *(policy.generate([i], Sampling(max_tokens=cap)) for i, cap in enumerate((3, 2, 9), 1))
        )

    engine = Engine()
    generations = asyncio.run(main())
    assert engine.sizes == [3]
    assert engine.samplings[0].max_tokens == 9
    assert [(g.ids, g.logprobs, g.finish) for g in generations] == [
        ((1, 1, 1), (-1.0, -2.0, -3.0), FinishReason.STOP),
        ((2, 2), (-1.0, -2.0), FinishReason.LENGTH),
        ((3, 3, 3), (-1.0, -2.0, -3.0), FinishReason.STOP),
    ]


def test_the_event_loop_runs_while_a_thread_generates() -> None:
    async def main() -> int:
        policy = BatchPolicy(Engine(lambda: time.sleep(0.3)))
        policy.set_live(1)
        request = asyncio.ensure_future(policy.generate([1], Sampling()))
        ticks = 0
        while not request.done():
            await asyncio.sleep(0.005)
            ticks += 1
        return ticks

    assert asyncio.run(main()) >= 3, "a blocked loop has one tick"


def test_a_policy_serves_the_next_event_loop_after_a_cancelled_one() -> None:
    """As in a training loop, where each run has its own event loop."""
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
    assert engine.most_at_once == 1, "the abandoned batch ends first"


def test_a_rollout_batches_the_requests_of_its_episodes() -> None:
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
    assert time.monotonic() - began < 10, "a batch waited for an ended episode"
    assert [len(e.turns) for e in episodes] == [1, 2, 3] * 3
    assert engine.sizes == [9, 6, 3]


def test_a_generation_past_its_deadline_fails_only_its_own_episode() -> None:
    slow = threading.Event()

    def generate(prompts: list[list[int]], sampling: Sampling) -> Sequence[Generation]:
        if not slow.is_set():
            slow.set()
            time.sleep(2.0)
        return [Generation((65, 257), (-0.5, -0.5)) for _ in prompts]

    rollout = Rollout(
        BatchPolicy(generate, max_batch=1),
        Renderer(ByteTokenizer()),
        limits=Limits(generate_deadline=1.0, retries=0),
        concurrency=1,
        make_env=lambda task: AsyncEnv(counts),
    )
    stops = [e.stop for e in rollout.run_batch(tasks_for("test:Env", range(5)))]
    assert stops[0] is StopReason.POLICY_DEADLINE
    assert stops[-1] is StopReason.TERMINATED


# Scripted policies and players.


def test_scripted_policy_takes_lines_or_a_function() -> None:
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


def test_random_and_scripted_players_act() -> None:
    class Dice(Env):
        def sample_action(self) -> str:
            return "six"

    assert RandomPlayer().act(Dice(), "?") == "six"
    assert ScriptedPlayer(lambda env, observation: observation + "!").act(Dice(), "?") == "?!"


def test_the_method_determines_the_kind_of_policy() -> None:
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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1.0),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_k", -1),
        ("max_tokens", 0),
    ],
)
def test_sampling_rejects_invalid_values(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{field} must be .*, got {value}"):
        Sampling(**{field: value})
