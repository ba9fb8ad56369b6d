"""Rollouts: episodes are exact token by token, end for a named reason, and never take each other down."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest
from byte_tokenizer import ByteTokenizer
from project import SOURCES, SUPPORT
from scripted_env import AsyncEnv, Hang, ScriptedEnv, counts

from gem_core import (
    Env,
    Episode,
    FinishReason,
    Generation,
    Limits,
    Message,
    Player,
    RandomPlayer,
    Renderer,
    Rollout,
    Sampling,
    ScriptedPlayer,
    ScriptedPolicy,
    StopReason,
    Task,
    TurnStatus,
    hookimpl,
    make,
    register_plugin,
    run_batch,
    run_episode,
    tasks_for,
    token_sequences,
)
from gem_core.errors import ConfigError, PluginError, PolicyError
from gem_core.plugins.manager import unregister_plugin
from gem_core.rollout.env_pool import EnvPool
from gem_core.rollout.episode_runner import EpisodeRunner
from gem_core.rollout.step_threads import StepThreads
from gem_core.wrappers.history import Concat, ConcatChat, ConcatChatOnReset

GAME = "game:GuessTheNumber-v0-easy"


class Recorder:
    """Answers an episode line by line, a logprob of its own for every id, and keeps what it was shown."""

    def __init__(self, lines: Sequence[str | Generation], tokenizer: ByteTokenizer) -> None:
        self.lines, self.tokenizer = list(lines), tokenizer
        self.prompts: list[tuple[int, ...]] = []
        self.given: list[Generation] = []

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        self.prompts.append(tuple(prompt_ids))
        line = self.lines[len(self.given)]
        if isinstance(line, str):
            ids = (
                *self.tokenizer.encode(line, add_special_tokens=False),
                self.tokenizer.eos_token_id,
            )
            line = Generation(
                ids, tuple(-1.0 - len(self.given) - i / 1000 for i in range(len(ids)))
            )
        self.given.append(line)
        prompt_ids.append(0)  # type: ignore[attr-defined]  # a rude policy: the episode must not notice
        return line


def engine(
    env: Callable[[], Env],
    policy: Any = None,
    style: str = "chatml",
    mode: Any = "append",
    **settings: Any,
) -> Rollout:
    """An engine for environments made by a function."""
    tokenizer = ByteTokenizer(style)
    policy = policy if policy is not None else ScriptedPolicy(lambda prompt: "go", tokenizer)
    renderer = None if isinstance(policy, Player) else Renderer(tokenizer, mode)
    return Rollout(policy, renderer, make_env=lambda task: env(), **settings)


def play(env: Callable[[], Env], policy: Any = None, seed: int = 1, **settings: Any) -> Episode:
    with engine(env, policy, **settings) as rollout:
        return rollout.run_batch([Task("test:Env", seed)])[0]


@pytest.fixture
def hang() -> Iterator[Hang]:
    step = Hang()
    yield step
    step.let_go.set()


# Token identity.

BROKEN_UTF8 = Generation((0xF0, 0x9F, 0x99), (-0.1, -0.2, -0.3), FinishReason.LENGTH)
"""The first three bytes of an emoji: its text cannot be encoded back to the same ids."""
CONTEXTS = {
    "append": ({}, lambda env: env),
    "append, a template that drops thinking": ({"style": "thinking"}, lambda env: env),
    "append, no system role": ({"style": "no_system"}, lambda env: env),
    "append, a template that strips": ({"style": "trims"}, lambda env: env),
    "template": ({"mode": "template"}, lambda env: env),
    "template that drops thinking": ({"mode": "template", "style": "thinking"}, lambda env: env),
    "plain text": ({"style": "none"}, lambda env: env),
    "one text": ({}, Concat),
    "a window": ({}, lambda env: ConcatChat(env, window=1)),
    "a window in template mode": ({"mode": "template"}, lambda env: ConcatChat(env, window=1)),
    "a template on reset": ({}, ConcatChatOnReset),
}


@pytest.mark.parametrize("context", CONTEXTS)
def test_what_is_trained_is_what_was_sampled(context: str) -> None:
    """Invariant 1, for every way of making the next prompt: with thinking, several bytes a character, a cut character and an
    empty turn."""
    settings, wrap = CONTEXTS[context]
    tokenizer = ByteTokenizer(settings.get("style", "chatml"))
    lines = [
        "<think>höher?</think>\n\n5 → 日本",
        BROKEN_UTF8,
        Generation((), (), FinishReason.STOP),
        " 7  ",
        "<|im_end|> 8",
    ]
    policy = Recorder(lines, tokenizer)

    def answer(env: ScriptedEnv, action: str) -> Any:
        return (
            f"ünd {env.turn} <b>\n",
            0.5,
            env.turn == 4,
            False,
            {"suffix": f"S{env.turn}"} if env.turn == 2 else {},
        )

    episode = play(lambda: wrap(ScriptedEnv(answer)), policy, **settings)
    assert episode.stop is StopReason.TERMINATED
    assert [episode.prompt_ids(t) for t in range(5)] == policy.prompts
    assert [t.action_ids for t in episode.turns] == [g.ids for g in policy.given]
    assert [t.logprobs for t in episode.turns] == [g.logprobs for g in policy.given]
    seen = []
    for row in token_sequences(episode):
        assert row.logprobs is not None
        assert len(row.ids) == len(row.turn_of) == len(row.logprobs)
        assert row.turn_of[-1] >= 0, "a row ends with the last sampled token"
        for turn, start, end in row.spans:
            seen.append(turn)
            assert row.ids[:start] == episode.prompt_ids(turn), (
                "what stands before an action is what the policy was shown"
            )
            assert row.ids[start:end] == policy.given[turn].ids
            assert row.logprobs[start:end] == policy.given[turn].logprobs
        assert all(p == 0.0 for p, t in zip(row.logprobs, row.turn_of) if t < 0)
    assert seen == [0, 1, 3, 4], (
        "the empty turn has no token; every other stands in exactly one row"
    )


def test_append_mode_is_one_row_and_keeps_thinking() -> None:
    lines = [f"<think>{i}</think>\n\nanswer {i}" for i in range(3)]
    (row,) = token_sequences(
        play(ScriptedEnv, Recorder(lines, ByteTokenizer("thinking")), style="thinking")
    )
    assert [turn for turn, _, _ in row.spans] == [0, 1, 2]
    text = ByteTokenizer().decode(row.ids)
    assert text.count("<think>") == 3


def test_template_mode_splits_rows_where_the_template_rewrites() -> None:
    lines = [f"<think>{i}</think>\n\nanswer {i}" for i in range(3)]
    episode = play(
        ScriptedEnv, Recorder(lines, ByteTokenizer("thinking")), style="thinking", mode="template"
    )
    rows = token_sequences(episode)
    assert [[turn for turn, _, _ in row.spans] for row in rows] == [[0], [1], [2]]
    assert "<think>0" not in ByteTokenizer().decode(rows[1].ids)


def test_a_cut_turn_is_closed_with_a_token_nobody_sampled() -> None:
    policy = Recorder(
        [Generation((65, 66), (-0.1, -0.2), FinishReason.LENGTH), "x", "y"], ByteTokenizer()
    )
    (row,) = token_sequences(play(ScriptedEnv, policy))
    _, _, end = row.spans[0]
    assert (row.ids[end], row.turn_of[end]) == (257, -1)
    _, _, end = row.spans[1]
    assert row.ids[end - 1] == 257, "a turn end that was sampled belongs to the turn"
    assert row.ids[end] != 257, "and is not repeated"


def test_the_action_text_is_the_sampled_ids_without_special_tokens() -> None:
    episode = play(ScriptedEnv, Recorder(["är 1", BROKEN_UTF8, "z"], ByteTokenizer()))
    assert [t.action for t in episode.turns] == ["är 1", "\ufffd", "z"]
    assert [t.reward for t in episode.turns] == [1.0, 2.0, 3.0]
    assert episode.total_reward == 6.0
    assert episode.final_observation == "O3"
    assert [t.messages for t in episode.turns] == [(Message("user", s),) for s in ("T", "O1", "O2")]


def test_the_suffix_stands_before_the_generation_prompt() -> None:
    begin = lambda env: ("T", {"suffix": "your move", "system": "be brief"})  # noqa: E731
    episode = play(lambda: ScriptedEnv(begin=begin), Recorder(["a", "b", "c"], ByteTokenizer()))
    assert ByteTokenizer().decode(episode.prompt_ids(0)) == (
        "<|begin|><|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nT\nyour move<|im_end|>\n<|im_start|>assistant\n"
    )


# Why episodes end, and what that means for credit.


def loops(env: ScriptedEnv, action: str) -> Any:
    return f"O{env.turn + 1}", 1.0, False, False, {}


def ends(terminated: bool, truncated: bool) -> Callable[[ScriptedEnv, str], Any]:
    return lambda env, action: ("end", 1.0, terminated, truncated, {})


def raises(error: BaseException) -> Callable[[ScriptedEnv, str], Any]:
    def answer(env: ScriptedEnv, action: str) -> Any:
        if env.turn:
            raise error
        return "O1", 1.0, False, False, {}

    return answer


class BadPolicy:
    """Gives one good turn and then something else."""

    def __init__(self, then: Any) -> None:
        self.then, self.calls = then, 0

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        self.calls += 1
        if self.calls == 1:
            return Generation((65,), (-0.5,))
        if isinstance(self.then, BaseException):
            raise self.then
        if callable(self.then):
            return await self.then()  # type: ignore[no-any-return]
        return self.then  # type: ignore[no-any-return]


async def never() -> Any:
    await asyncio.sleep(60)


V, M, X = TurnStatus.VALID, TurnStatus.MASKED, TurnStatus.FAILED
STOPS: dict[str, tuple[Any, dict[str, Any], StopReason, list[TurnStatus]]] = {
    "the environment ends": (ends(True, False), {}, StopReason.TERMINATED, [V]),
    "the environment truncates": (ends(False, True), {}, StopReason.TRUNCATED, [V]),
    "both at once": (ends(True, True), {}, StopReason.TERMINATED, [V]),
    "turn limit": (loops, {"limits": Limits(max_turns=2)}, StopReason.TURN_LIMIT, [V, V]),
    # "go" and the turn end are 3 tokens: 3 + 3 + the 1 that is left
    "token limit": (loops, {"limits": Limits(max_tokens=7)}, StopReason.TOKEN_LIMIT, [V, V, V]),
    "token limit, exactly": (
        loops,
        {"limits": Limits(max_tokens=6)},
        StopReason.TOKEN_LIMIT,
        [V, V],
    ),
    # a first prompt of 21 tokens, 22 for each observation: 21 + 3 + 22 + 3 + 22 leave no room
    "context full": (loops, {"limits": Limits(max_context=71)}, StopReason.CONTEXT_FULL, [V, V]),
    "context nearly full": (
        loops,
        {"limits": Limits(max_context=72)},
        StopReason.CONTEXT_FULL,
        [V, V, V],
    ),
    "the first prompt is too long": (
        loops,
        {"limits": Limits(max_context=10)},
        StopReason.CONTEXT_FULL,
        [],
    ),
    "cut, goes on": (
        ends(True, False),
        {"sampling": Sampling(max_tokens=1)},
        StopReason.TERMINATED,
        [V],
    ),
    "cut, masked": (
        ends(True, False),
        {"sampling": Sampling(max_tokens=1), "limits": Limits(on_cut="mask")},
        StopReason.TERMINATED,
        [M],
    ),
    "cut, ended": (
        loops,
        {"sampling": Sampling(max_tokens=1), "limits": Limits(on_cut="end")},
        StopReason.GENERATION_CUT,
        [V],
    ),
    "cut, ended by both": (
        ends(True, False),
        {"sampling": Sampling(max_tokens=1), "limits": Limits(on_cut="end")},
        StopReason.TERMINATED,
        [V],
    ),
    "environment error": (raises(RuntimeError("boom")), {}, StopReason.ENV_ERROR, [V, X]),
    "environment cancels itself": (
        raises(asyncio.CancelledError()),
        {},
        StopReason.ENV_ERROR,
        [V, X],
    ),
    "environment exits": (raises(SystemExit(3)), {}, StopReason.ENV_ERROR, [V, X]),
    "nonsense, no five values": (lambda env, action: "hello", {}, StopReason.ENV_INVALID, [X]),
    "nonsense, NaN": (
        lambda env, action: ("O", float("nan"), False, False, {}),
        {},
        StopReason.ENV_INVALID,
        [X],
    ),
    "nonsense, no text": (
        lambda env, action: (b"O", 0.0, False, False, {}),
        {},
        StopReason.ENV_INVALID,
        [X],
    ),
    "nonsense, reward a text": (
        lambda env, action: ("O", "1.0", False, False, {}),
        {},
        StopReason.ENV_INVALID,
        [X],
    ),
    "nonsense, a reward beyond floats": (
        lambda env, action: ("O", 10**400, False, False, {}),
        {},
        StopReason.ENV_INVALID,
        [X],
    ),
    "nonsense, ended is a text": (
        lambda env, action: ("O", 0.0, "no", False, {}),
        {},
        StopReason.ENV_INVALID,
        [X],
    ),
    "policy error": (loops, {"policy": BadPolicy(ValueError("oom"))}, StopReason.POLICY_ERROR, [V]),
    "policy gives no generation": (
        loops,
        {"policy": BadPolicy("text")},
        StopReason.POLICY_ERROR,
        [V],
    ),
    "policy gives too many ids": (
        loops,
        {"policy": BadPolicy(Generation((65,) * 513))},
        StopReason.POLICY_ERROR,
        [V],
    ),
    "policy gives half the logprobs": (
        loops,
        {"policy": BadPolicy(Generation((65, 66), (-1.0,)))},
        StopReason.POLICY_ERROR,
        [V],
    ),
    "policy gives NaN": (
        loops,
        {"policy": BadPolicy(Generation((65,), (float("nan"),)))},
        StopReason.POLICY_ERROR,
        [V],
    ),
    "policy gives a negative id": (
        loops,
        {"policy": BadPolicy(Generation((-1,), (-1.0,)))},
        StopReason.POLICY_ERROR,
        [V],
    ),
    "policy gives floats for ids": (
        loops,
        {"policy": BadPolicy(Generation((6.5,), (-1.0,)))},
        StopReason.POLICY_ERROR,
        [V],
    ),  # type: ignore[arg-type]
    "policy gives ids that do not exist": (
        loops,
        {"policy": BadPolicy(Generation((9999,), (-1.0,)))},
        StopReason.POLICY_ERROR,
        [V],
    ),
    "policy is late": (
        loops,
        {"policy": BadPolicy(never), "limits": Limits(generate_deadline=0.05)},
        StopReason.POLICY_DEADLINE,
        [V],
    ),
    "episode is late": (
        loops,
        {"policy": BadPolicy(never), "limits": Limits(episode_deadline=0.05)},
        StopReason.EPISODE_DEADLINE,
        [V],
    ),
    "script runs out": (
        loops,
        {"policy": ScriptedPolicy(["one"], ByteTokenizer())},
        StopReason.POLICY_ERROR,
        [V],
    ),
}


@pytest.mark.parametrize("kind", [ScriptedEnv, AsyncEnv], ids=["sync", "async"])
@pytest.mark.parametrize("why", STOPS)
def test_every_end_has_a_name_and_a_credit(why: str, kind: type[ScriptedEnv]) -> None:
    answer, settings, stop, statuses = STOPS[why]
    if isinstance(settings.get("policy"), BadPolicy):
        settings = {**settings, "policy": BadPolicy(settings["policy"].then)}
    elif isinstance(settings.get("policy"), ScriptedPolicy):
        settings = {**settings, "policy": ScriptedPolicy(["one"], ByteTokenizer())}
    episode = play(lambda: kind(answer), **settings)
    if sys.version_info < (3, 11) and why == "environment cancels itself":
        stop = StopReason.CANCELLED  # nobody can tell there who cancelled
    assert (episode.stop, [t.status for t in episode.turns]) == (stop, statuses), episode.failure
    assert episode.failed == stop.failed == (episode.failure is not None)
    for turn in episode.turns:
        assert (turn.reward is None) == (turn.status is TurnStatus.FAILED), (
            "no reward is made up, none is lost"
        )
    assert (token_sequences(episode) == []) == (episode.failed or not statuses)
    assert pickle.loads(pickle.dumps(episode)) == episode


def test_every_stop_reason_is_reached_here() -> None:
    """Those missing from the table above need threads or Ctrl-C, and have tests of their own below."""
    assert set(StopReason) - {stop for _, _, stop, _ in STOPS.values()} == {
        StopReason.ENV_DEADLINE,
        StopReason.CANCELLED,
    }


def test_a_failure_says_what_broke_and_where() -> None:
    failure = play(lambda: ScriptedEnv(raises(RuntimeError("boom")))).failure
    assert failure is not None
    assert str(failure) == "RuntimeError in step: boom"
    assert "in answer" in failure.traceback

    def broken() -> Env:
        raise OSError("no such world")

    episode = play(broken)
    assert (str(episode.failure), episode.turns, episode.stop) == (
        "OSError in make: no such world",
        (),
        StopReason.ENV_ERROR,
    )
    episode = play(lambda: ScriptedEnv(begin=lambda env: ("T", None)))  # type: ignore[arg-type,return-value]
    assert episode.stop is StopReason.ENV_INVALID
    assert episode.failure is not None
    assert episode.failure.where == "reset"


def test_nothing_sampled_steps_the_environment_with_nothing() -> None:
    log: list[str] = []
    policy = Recorder([Generation((), (), FinishReason.STOP), "b", Generation(())], ByteTokenizer())
    episode = play(lambda: ScriptedEnv(log=log), policy)
    assert log[2:5] == ["step ", "step b", "step "]
    assert [(t.status, t.finish, t.reward) for t in episode.turns] == [
        (TurnStatus.MASKED, FinishReason.EMPTY, 1.0),
        (TurnStatus.VALID, FinishReason.STOP, 2.0),
        (TurnStatus.MASKED, FinishReason.EMPTY, 3.0),
    ]
    assert episode.total_reward == 6.0


def test_a_turn_that_is_only_the_turn_end_is_valid() -> None:
    (turn, *_) = play(ScriptedEnv, Recorder(["", "", ""], ByteTokenizer())).turns
    assert (turn.action_ids, turn.action, turn.status) == ((257,), "", TurnStatus.VALID)


def test_a_turn_never_samples_beyond_the_context_or_the_episode() -> None:
    asked: list[tuple[int, int]] = []

    class Asked:
        async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
            asked.append((len(prompt_ids), sampling.max_tokens))
            return Generation(
                (65,) * sampling.max_tokens, (-1.0,) * sampling.max_tokens, FinishReason.LENGTH
            )

    first = len(Renderer(ByteTokenizer()).start([Message("user", "T")]))
    play(
        lambda: ScriptedEnv(loops),
        Asked(),
        sampling=Sampling(max_tokens=10),
        limits=Limits(max_tokens=25),
    )
    assert [cap for _, cap in asked] == [10, 10, 5]
    asked.clear()
    episode = play(lambda: ScriptedEnv(loops), Asked(), limits=Limits(max_context=first + 4))
    assert asked == [(first, 4)]
    assert (episode.stop, episode.turns[0].sampling) == (
        StopReason.CONTEXT_FULL,
        Sampling(max_tokens=4),
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_turns": 0},
        {"max_tokens": -1},
        {"step_deadline": 0},
        {"retries": -1},
        {"on_cut": "drop"},
    ],
    ids=str,
)
def test_limits_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Limits(**wrong)


# Deadlines.


def test_a_step_that_hangs_costs_only_its_own_episode(hang: Hang) -> None:
    """Sync environments, on threads: one hangs for good, the others neither wait nor lose anything."""
    rollout = Rollout(
        ScriptedPolicy(lambda prompt: "go", ByteTokenizer()),
        Renderer(ByteTokenizer()),
        limits=Limits(step_deadline=0.2),
        concurrency=4,
        make_env=lambda task: ScriptedEnv(hang if task.seed == 2 else counts, execution="thread"),
    )
    began = time.monotonic()
    episodes = rollout.run_batch(tasks_for("test:Env", range(8)))
    assert time.monotonic() - began < 5
    assert [e.stop for e in episodes] == [StopReason.TERMINATED] * 2 + [StopReason.ENV_DEADLINE] + [
        StopReason.TERMINATED
    ] * 5
    assert episodes[2].turns[0].status is TurnStatus.FAILED
    assert str(episodes[2].failure) == "DeadlineError in step: step took over 0.2 s"
    assert rollout.threads.abandoned == 1


def test_a_pool_that_ends_without_its_loop_closes_async_environments_too() -> None:
    log: list[str] = []
    pool, task = EnvPool(StepThreads(1), lambda task: AsyncEnv(log=log)), Task("any")
    env = pool.take(task)
    assert isinstance(env, AsyncEnv)
    pool.give(task, env)
    pool.close()
    assert log == ["make", "close"]


@pytest.mark.parametrize("where", ["reset", "step"])
def test_an_async_environment_that_hangs_is_cancelled(where: str) -> None:
    cancelled: list[str] = []

    class Slow(AsyncEnv):
        async def on_reset(self, options: Any) -> Any:
            await self._wait("reset")
            return "T", {}

        async def on_step(self, action: str) -> Any:
            await self._wait("step")
            return "O", 0.0, True, False, {}

        async def _wait(self, here: str) -> None:
            try:
                await asyncio.sleep(30 if here == where else 0)
            except asyncio.CancelledError:
                cancelled.append(here)
                raise

    async def main() -> Episode:
        episode = await engine(Slow, limits=Limits(step_deadline=0.05)).episode(Task("test:Env", 1))
        await asyncio.sleep(0)
        assert cancelled == [where], "at once, and not when the program ends"
        return episode

    episode = asyncio.run(main())
    assert episode.stop is StopReason.ENV_DEADLINE
    assert episode.failure is not None
    assert episode.failure.where == where


def test_an_environment_that_ignores_its_cancellation_is_left_behind() -> None:
    class Deaf(AsyncEnv):
        async def on_step(self, action: str) -> Any:
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                await asyncio.sleep(0.3)
            return "late", 1.0, True, False, {}

    async def main() -> tuple[Episode, float]:
        began = time.monotonic()
        episode = await engine(Deaf, limits=Limits(step_deadline=0.05)).episode(Task("test:Env", 1))
        took = time.monotonic() - began
        await asyncio.sleep(0.35)  # so that nothing is left over at the end of the loop
        return episode, took

    episode, took = asyncio.run(main())
    assert episode.stop is StopReason.ENV_DEADLINE
    assert took < 0.25


def test_the_episode_deadline_counts_everything_and_is_not_retried() -> None:
    class Slow(AsyncEnv):
        async def on_step(self, action: str) -> Any:
            await asyncio.sleep(0.03)
            return "O", 0.0, False, False, {}

    began = time.monotonic()
    episode = play(Slow, limits=Limits(episode_deadline=0.1, step_deadline=5, retries=5))
    assert time.monotonic() - began < 2
    assert (episode.stop, episode.attempts) == (StopReason.EPISODE_DEADLINE, 1)
    assert len(episode.turns) >= 2


# Retries.


def test_a_retry_replays_what_was_played_and_goes_on() -> None:
    """The policy is asked once for each turn: what it said is not sampled again."""
    broken: list[int] = []

    def answer(env: ScriptedEnv, action: str) -> Any:
        if env.turn == 2 and not broken:
            broken.append(1)
            raise ConnectionError("gone")
        return counts(env, action)

    log: list[str] = []
    policy = Recorder(["a", "b", "c"], ByteTokenizer())
    episode = play(lambda: ScriptedEnv(answer, log=log), policy, limits=Limits(retries=1))
    plain = play(ScriptedEnv, Recorder(["a", "b", "c"], ByteTokenizer()))
    assert (episode.turns, episode.stop) == (plain.turns, plain.stop)
    assert (episode.attempts, plain.attempts, len(policy.given)) == (2, 1, 3)
    assert [entry for entry in log if entry != "close"] == [
        *("make", "reset", "step a", "step b", "step c"),
        *("make", "reset", "step a", "step b", "step c"),
    ]
    assert log.count("close") == 2


def test_a_replay_that_leads_elsewhere_starts_the_episode_over() -> None:
    made: list[ScriptedEnv] = []

    def answer(env: ScriptedEnv, action: str) -> Any:
        if env.turn == 1 and env is made[0]:
            raise ConnectionError("gone")
        return f"world {made.index(env)}", 1.0, env.turn == 1, False, {}

    def build() -> Env:
        made.append(ScriptedEnv(answer))
        return made[-1]

    policy = Recorder(["a", "b", "c", "d"], ByteTokenizer())
    episode = play(build, policy, limits=Limits(retries=1))
    assert [t.action for t in episode.turns] == ["c", "d"]
    assert (episode.stop, episode.attempts, episode.final_observation) == (
        StopReason.TERMINATED,
        2,
        "world 2",
    )
    assert [entry.log.count("close") for entry in made] == [1, 1, 1], (
        "also the one that led elsewhere is closed"
    )


def test_a_replay_that_ends_too_early_starts_the_episode_over() -> None:
    made: list[ScriptedEnv] = []

    def answer(env: ScriptedEnv, action: str) -> Any:
        if env.turn == 2 and env is made[0]:
            raise ConnectionError("gone")
        return f"O{env.turn}", 1.0, (len(made) == 2 and env is made[1]) or env.turn == 2, False, {}

    def build() -> Env:
        made.append(ScriptedEnv(answer))
        return made[-1]

    episode = play(build, limits=Limits(retries=1))
    assert (episode.stop, episode.attempts, len(episode.turns), len(made)) == (
        StopReason.TERMINATED,
        2,
        3,
        3,
    )


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_an_environment_that_always_breaks_is_failed_after_its_retries(retries: int) -> None:
    log: list[str] = []
    episode = play(
        lambda: ScriptedEnv(raises(OSError("x")), log=log), limits=Limits(retries=retries)
    )
    assert (episode.stop, episode.attempts) == (StopReason.ENV_ERROR, retries + 1)
    assert (log.count("make"), log.count("close")) == (retries + 1, retries + 1)
    assert [t.status for t in episode.turns] == [TurnStatus.VALID, TurnStatus.FAILED]


def test_a_reset_is_retried_in_a_new_environment() -> None:
    made: list[int] = []

    def begin(env: ScriptedEnv) -> Any:
        made.append(1)
        if len(made) < 3:
            raise TimeoutError("busy")
        return "T", {}

    episode = play(lambda: ScriptedEnv(begin=begin), limits=Limits(retries=2))
    assert (episode.stop, episode.attempts) == (StopReason.TERMINATED, 3)


def test_a_policy_error_is_retried_with_the_same_prompt() -> None:
    prompts: list[list[int]] = []

    class Flaky:
        async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
            prompts.append(list(prompt_ids))
            if len(prompts) % 2:
                raise PolicyError("try again")
            return Generation((65, 257), (-0.5, -0.5))

    episode = play(ScriptedEnv, Flaky(), limits=Limits(retries=3))
    assert (episode.stop, episode.attempts) == (StopReason.TERMINATED, 4)
    assert prompts[0::2] == prompts[1::2]


def test_a_broken_environment_is_never_used_again() -> None:
    made: list[ScriptedEnv] = []

    def build() -> Env:
        made.append(ScriptedEnv(raises(OSError("x")) if not made else counts))
        return made[-1]

    with engine(build, concurrency=1) as rollout:
        episodes = rollout.run_batch(tasks_for("test:Env", range(3)))
    assert [e.stop for e in episodes] == [
        StopReason.ENV_ERROR,
        StopReason.TERMINATED,
        StopReason.TERMINATED,
    ]
    assert len(made) == 2, "the second one serves the last two episodes"
    assert [env.log.count("close") for env in made] == [1, 1]


# Many at once.


@pytest.mark.parametrize("execution", ["inline", "thread"])
def test_one_crashing_environment_of_64_costs_one_episode(execution: str) -> None:
    def answer(env: ScriptedEnv, action: str) -> Any:
        if env.seed == 13:
            raise MemoryError
        return counts(env, action)

    rollout = engine(lambda: ScriptedEnv(answer, execution=execution), concurrency=16)
    episodes = rollout.run_batch(tasks_for("test:Env", range(64)))
    assert [e.seed for e in episodes if e.failed] == [13]
    assert [e.seed for e in episodes] == list(range(64)), "in the order of the tasks"
    assert all(e.total_reward == 6.0 for e in episodes if not e.failed)


def delays(seconds: dict[int, float], log: list[int] | None = None) -> Callable[[], Env]:
    class Delayed(AsyncEnv):
        async def on_step(self, action: str) -> Any:
            await asyncio.sleep(seconds.get(self.seed, 0.0))
            if log is not None:
                log.append(self.seed)
            return counts(self, action)

    return Delayed


def test_episodes_come_as_they_finish_and_none_waits_for_the_slowest() -> None:
    order: list[int] = []
    rollout = engine(delays({0: 0.1, 1: 0.03}), concurrency=2)
    episodes = rollout.run_batch(
        tasks_for("test:Env", range(6)), on_episode=lambda e: order.append(e.index)
    )
    assert [e.index for e in episodes] == list(range(6))
    assert order == [1, 2, 3, 4, 5, 0], (
        "five episodes on one place while the slow one holds the other"
    )


@pytest.mark.parametrize(
    "policy",
    [ScriptedPolicy(lambda prompt: "go", ByteTokenizer()), ScriptedPlayer(lambda env, said: "go")],
)
def test_episodes_take_turns_also_where_nobody_ever_waits(policy: Any) -> None:
    order: list[int] = []

    def answer(env: ScriptedEnv, action: str) -> Any:
        order.append(env.seed)
        return counts(env, action)

    engine(lambda: ScriptedEnv(answer), policy, concurrency=2).run_batch(
        tasks_for("test:Env", range(2))
    )
    assert order == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize("limit", [1, 3, 8])
def test_the_concurrency_limit_is_kept_and_reached(limit: int) -> None:
    running: list[int] = []
    most: list[int] = []

    class Counted(AsyncEnv):
        async def on_step(self, action: str) -> Any:
            running.append(1)
            most.append(len(running))
            await asyncio.sleep(0.002)
            running.pop()
            return counts(self, action)

    engine(Counted, concurrency=limit).run_batch(tasks_for("test:Env", range(8)))
    assert max(most) == limit


def test_tasks_are_drawn_as_they_are_needed() -> None:
    drawn: list[int] = []

    def tasks() -> Iterator[Task]:
        for i in range(1000):
            drawn.append(i)
            yield Task("test:Env", i)

    async def main() -> int:
        stream = engine(ScriptedEnv, concurrency=2).stream(tasks())
        async for _ in stream:
            break
        await stream.aclose()
        return len(drawn)

    assert asyncio.run(main()) <= 4


def test_leaving_a_stream_early_ends_what_is_running() -> None:
    log: list[str] = []

    class Slow(AsyncEnv):
        async def on_step(self, action: str) -> Any:
            if self.seed:
                await asyncio.sleep(60)
            return counts(self, action)

    async def main() -> None:
        rollout = engine(lambda: Slow(log=log), concurrency=4)
        async for episode in (stream := rollout.stream(tasks_for("test:Env", range(4)))):
            assert episode.seed == 0
            break
        await stream.aclose()
        assert len(asyncio.all_tasks()) == 1

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < 2
    assert log.count("make") == log.count("close") == 4


def test_an_error_in_the_callers_callback_reaches_the_caller() -> None:
    def complain(episode: Episode) -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        engine(ScriptedEnv).run_batch(tasks_for("test:Env", range(3)), on_episode=complain)


def test_stop_ends_the_run_and_every_task_comes_back() -> None:
    rollout = engine(delays({1: 30.0, 2: 30.0}), concurrency=3)
    tasks = tasks_for("test:Env", range(6))

    async def main() -> tuple[list[Episode], list[Episode]]:
        first = await rollout.batch(tasks, on_episode=lambda e: rollout.stop())
        return first, await rollout.batch(tasks_for("test:Env", [0, 5]))

    first, second = asyncio.run(main())
    assert [e.stop for e in first] == [StopReason.TERMINATED] + [StopReason.CANCELLED] * 5
    assert [e.index for e in first] == list(range(6))
    assert [t.status for t in first[1].turns] == [TurnStatus.FAILED]
    assert [e.stop for e in second] == [StopReason.TERMINATED] * 2, "the engine can be used again"


def test_a_stop_between_two_batches_leaves_the_next_one_alone() -> None:
    rollout = engine(ScriptedEnv)
    rollout.stop()
    for _ in range(2):
        assert [e.stop for e in rollout.run_batch(tasks_for("test:Env", range(3)))] == [
            StopReason.TERMINATED
        ] * 3
        rollout.stop()

    async def main() -> list[Episode]:
        await rollout.batch(tasks_for("test:Env", range(3)))
        rollout.stop()
        stopping = threading.Thread(target=rollout.stop)
        stopping.start()
        stopping.join()
        await asyncio.sleep(0.01)
        return await rollout.batch(tasks_for("test:Env", range(3)))

    assert [e.stop for e in asyncio.run(main())] == [StopReason.TERMINATED] * 3


@pytest.mark.parametrize("begun", [False, True], ids=["before the first", "behind another"])
def test_a_stop_is_not_lost_where_a_batch_has_not_come_to_its_first_episode(begun: bool) -> None:
    rollout = engine(ScriptedEnv)

    def tasks() -> Iterator[Task]:
        stopping = threading.Thread(target=rollout.stop)
        stopping.start()
        stopping.join()
        yield from tasks_for("test:Env", range(3))

    if begun:
        rollout.run_batch(tasks_for("test:Env", range(2)))
    assert [e.stop for e in rollout.run_batch(tasks())] == [StopReason.CANCELLED] * 3
    assert [e.stop for e in rollout.run_batch(tasks_for("test:Env", range(2)))] == [
        StopReason.TERMINATED
    ] * 2


def test_a_stop_from_another_thread_ends_what_is_running() -> None:
    rollout = engine(delays({0: 30.0, 1: 30.0}), concurrency=2)
    threading.Timer(0.1, rollout.stop).start()
    began = time.monotonic()
    assert [e.stop for e in rollout.run_batch(tasks_for("test:Env", range(4)))] == [
        StopReason.CANCELLED
    ] * 4
    assert time.monotonic() - began < 10


def test_run_batch_works_inside_a_running_event_loop() -> None:
    """As in a notebook."""

    async def cell() -> list[Episode]:
        return run_batch(tasks_for(GAME, range(3)), RandomPlayer())

    assert [e.failed for e in asyncio.run(cell())] == [False] * 3


def test_one_engine_serves_run_after_run() -> None:
    rollout = engine(lambda: ScriptedEnv(execution="thread"), concurrency=4)
    for _ in range(3):
        assert [e.stop for e in rollout.run_batch(tasks_for("test:Env", range(5)))] == [
            StopReason.TERMINATED
        ] * 5


def test_making_a_slow_environment_does_not_hold_up_the_others() -> None:
    """A registered environment whose constructor blocks."""
    from gem_core import register
    from gem_core.env.registry import environments

    class SlowToMake(ScriptedEnv):
        execution = "thread"

        def __init__(self) -> None:
            super().__init__(execution="thread")
            time.sleep(0.2)

    register("test:SlowToMake-v0", SlowToMake)
    try:
        began = time.monotonic()
        episodes = run_batch(
            tasks_for("test:SlowToMake-v0", range(8)),
            ScriptedPlayer(lambda env, observation: "go"),
            concurrency=8,
        )
        assert time.monotonic() - began < 1.0, "eight at once, not one after the other"
        assert not any(e.failed for e in episodes)
    finally:
        environments.remove("test:SlowToMake-v0")


@pytest.mark.parametrize("kind", [ScriptedEnv, AsyncEnv])
def test_an_environment_that_is_made_too_late_is_closed(kind: type[ScriptedEnv]) -> None:
    """Also where its event loop is over by then."""
    from gem_core import register
    from gem_core.env.registry import environments

    log: list[str] = []

    def slow_to_make() -> Env:
        time.sleep(3.0)  # on a busy machine a deadline of 0.1 s may come a second late
        return kind(log=log, execution="thread")

    register("test:Late-v0", slow_to_make)
    try:
        player = ScriptedPlayer(lambda env, observation: "go")
        (episode,) = run_batch(
            [Task("test:Late-v0", 0)],
            player,
            limits=Limits(make_deadline=0.1, retries=4, episode_deadline=20.0),
        )
        assert (episode.stop, episode.attempts) == (StopReason.ENV_DEADLINE, 5)
        end = time.monotonic() + 10
        while log.count("close") < 5 and time.monotonic() < end:
            time.sleep(0.02)
        assert (log.count("make"), log.count("close")) == (5, 5)
    finally:
        environments.remove("test:Late-v0")


def test_an_environment_is_closed_where_the_run_is_stopped_in_the_very_moment_it_was_made() -> None:
    log: list[str] = []

    class Pool(EnvPool):
        def take(self, task: Task, *, fresh: bool = False) -> Awaitable[Env]:
            return self.stopped_by_then()

        async def stopped_by_then(self) -> Env:
            playing.cancel()
            return ScriptedEnv(log=log)

    async def stopped() -> None:
        nonlocal playing
        pool = Pool(StepThreads(1))
        player, limits = ScriptedPlayer(lambda env, observation: "go"), Limits(make_deadline=5.0)
        playing = asyncio.ensure_future(
            EpisodeRunner(Task(GAME, 0), player, None, Sampling(), limits, pool).run()
        )
        with pytest.raises(asyncio.CancelledError):
            await playing
        await pool.rest()

    playing: asyncio.Future[Episode]
    asyncio.run(stopped())
    assert log == ["make", "close"]


# What an episode says of itself.


def test_a_seed_is_drawn_and_recorded_where_none_is_given() -> None:
    player = RandomPlayer()
    first, second = run_batch([Task(GAME), Task(GAME)], player)
    assert first.seed != second.seed
    (again,) = run_batch([Task(GAME, first.seed)], player)
    assert [(t.action, t.reward, t.messages) for t in again.turns] == [
        (t.action, t.reward, t.messages) for t in first.turns
    ]


def test_equal_starts_have_equal_groups_and_others_do_not() -> None:
    tasks = [
        *tasks_for(GAME, [1], samples=2),
        Task(GAME, 2),
        Task(GAME, 1, wrappers=("concat",)),
        Task(GAME, 1, env_kwargs={"max_turns": 2}),
        Task("game:GuessTheNumber-v0-hard", 1),
    ]
    groups = [e.group for e in run_batch(tasks, RandomPlayer())]
    assert groups[0] == groups[1]
    assert len(set(groups)) == 5
    assert (
        play(lambda: ScriptedEnv(), seed=1).group
        != engine(ScriptedEnv).run_batch([Task("test:Env", 1, {"start": "S"})])[0].group
    )


def test_options_of_a_task_reach_the_environment() -> None:
    (episode,) = engine(ScriptedEnv).run_batch([Task("test:Env", 1, {"start": "hello"})])
    assert episode.turns[0].messages == (Message("user", "hello"),)
    (episode,) = engine(ScriptedEnv).run_batch([Task("test:Env", 1, {"colour": "red"})])
    assert episode.stop is StopReason.ENV_ERROR
    assert "colour" in str(episode.failure)


def test_a_mixture_records_the_environment_really_played() -> None:
    mixture = "game:GuessTheNumber-v0-easy + game:GuessTheNumber-v0-hard"
    episodes = run_batch(tasks_for(mixture, range(20)), RandomPlayer())
    assert {e.component for e in episodes} == {
        "game:GuessTheNumber-v0-easy",
        "game:GuessTheNumber-v0-hard",
    }
    assert all(e.played_id == e.component and e.env_id == mixture for e in episodes)


def test_the_prefix_of_a_failed_episode_can_be_asked_for() -> None:
    episode = play(lambda: ScriptedEnv(raises(OSError("x"))))
    prefix = episode.truncated_before_failed()
    assert (prefix.stop, prefix.failed, len(prefix.turns), prefix.total_reward) == (
        StopReason.TRUNCATED,
        False,
        1,
        1.0,
    )
    whole = play(ScriptedEnv)
    assert whole.truncated_before_failed() is whole


def test_success_is_what_the_environment_says() -> None:
    for said, wanted in ((True, True), (False, False), (None, None)):
        info = {} if said is None else {"success": said}
        episode = play(
            lambda info=info: ScriptedEnv(lambda env, action: ("O", 0.0, True, False, info))
        )  # type: ignore[misc]
        assert episode.success is wanted
    assert play(lambda: ScriptedEnv(raises(OSError("x")))).success is None


# Policies of the three kinds.


class Chat:
    """A server that answers in text."""

    def __init__(self) -> None:
        self.seen: list[list[dict[str, str]]] = []

    async def chat(self, messages: Sequence[Message], sampling: Sampling) -> Generation:
        self.seen.append([m.as_dict() for m in messages])
        return Generation((), text=f"answer {len(self.seen)}")


def test_a_text_only_policy_is_shown_the_conversation_and_cannot_be_trained() -> None:
    policy = Chat()
    episode = Rollout(policy, make_env=lambda task: ScriptedEnv()).run_batch([Task("test:Env", 1)])[
        0
    ]
    assert [[m["content"] for m in seen] for seen in policy.seen] == [
        ["T"],
        ["T", "answer 1", "O1"],
        ["T", "answer 1", "O1", "answer 2", "O2"],
    ]
    assert (episode.trainable, episode.stop, [t.status for t in episode.turns]) == (
        False,
        StopReason.TERMINATED,
        [TurnStatus.VALID] * 3,
    )
    with pytest.raises(ValueError, match="without token ids"):
        token_sequences(episode)


def test_a_text_only_policy_is_shown_a_rewritten_context() -> None:
    policy = Chat()
    episode = Rollout(policy, make_env=lambda task: Concat(ScriptedEnv())).run_batch(
        [Task("test:Env", 1)]
    )[0]
    assert policy.seen[-1] == [{"role": "user", "content": "T\nO1\nO2\n"}]
    assert [t.messages for t in episode.turns] == [
        (Message("user", "T\n"),),
        (Message("user", "T\nO1\n"),),
        (Message("user", "T\nO1\nO2\n"),),
    ]


@pytest.mark.parametrize("answer", [None, 5, b"x"])
def test_a_player_that_gives_no_text_is_a_policy_error(answer: Any) -> None:
    episode = play(ScriptedEnv, ScriptedPlayer(lambda env, observation: answer))
    assert episode.stop is StopReason.POLICY_ERROR


def test_a_player_sees_the_environment_and_may_be_async() -> None:
    async def best(env: Env, observation: str) -> str:
        await asyncio.sleep(0)
        return f"\\boxed{{{env.secret}}}"  # type: ignore[attr-defined]

    (episode,) = run_batch([Task(GAME, 3)], ScriptedPlayer(best))
    assert (episode.success, episode.total_reward, len(episode.turns)) == (True, 1.0, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((object(),), "object is not a policy"),
        ((ScriptedPolicy([], ByteTokenizer()),), "needs a renderer"),
    ],
)
def test_an_engine_that_cannot_work_is_refused(arguments: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Rollout(*arguments)


@pytest.mark.parametrize("concurrency", [0, -1, True, 2.5])
def test_a_concurrency_that_means_nothing_is_refused(concurrency: Any) -> None:
    with pytest.raises(ConfigError, match="concurrency"):
        Rollout(RandomPlayer(), concurrency=concurrency)


def test_sampling_from_a_cut_distribution_warns() -> None:
    with pytest.warns(UserWarning, match="top_p"):
        engine(ScriptedEnv, sampling=Sampling(top_p=0.9))


# One environment object.


def test_an_environment_object_stays_the_callers() -> None:
    log: list[str] = []
    env = ScriptedEnv(log=log, execution="thread")
    for _ in range(2):
        episode = run_episode(env, ScriptedPlayer(lambda env, observation: "go"), seed=4)
        assert (episode.stop, episode.env_id, episode.seed) == (
            StopReason.TERMINATED,
            "ScriptedEnv",
            4,
        )
    assert "close" not in log
    assert env.reset(seed=4) == ("T", {}), "it is no more async than it was before"


def test_an_episode_by_id_takes_wrappers_and_an_object_does_not() -> None:
    episode = run_episode(GAME, RandomPlayer(), seed=1, wrappers=["concat"])
    assert "concat" in episode.wrappers
    with pytest.raises(ConfigError, match="wrap an environment object yourself"):
        run_episode(make(GAME), RandomPlayer(), wrappers=["concat"])


# Events.


class Listener:
    def __init__(self) -> None:
        self.events: list[Any] = []

    @hookimpl
    def episode_start(self, task: Task, seed: int) -> None:
        self.events.append(("start", seed))

    @hookimpl
    def turn_end(self, task: Task, number: int, turn: Any) -> None:
        self.events.append(("turn", number, turn.reward))

    @hookimpl
    def episode_end(self, episode: Episode) -> None:
        self.events.append(("end", episode.stop))

    @hookimpl
    def batch_end(self, episodes: Sequence[Episode]) -> None:
        self.events.append(("batch", len(episodes)))


def test_plugins_hear_of_episodes_turns_and_batches() -> None:
    listener = Listener()
    register_plugin(listener, "listener")
    try:
        play(ScriptedEnv, seed=7)
        play(lambda: ScriptedEnv(raises(OSError("x"))), seed=8)
    finally:
        unregister_plugin("listener")
    assert listener.events == [
        *(
            ("start", 7),
            ("turn", 0, 1.0),
            ("turn", 1, 2.0),
            ("turn", 2, 3.0),
            ("end", StopReason.TERMINATED),
            ("batch", 1),
        ),
        *(
            ("start", 8),
            ("turn", 0, 1.0),
            ("turn", 1, None),
            ("end", StopReason.ENV_ERROR),
            ("batch", 1),
        ),
    ]
    play(ScriptedEnv)
    assert len(listener.events) == 11, "unregistered, it hears nothing"


def test_a_listener_that_fails_is_named() -> None:
    class Bad:
        @hookimpl
        def episode_end(self, episode: Episode) -> None:
            raise KeyError("disk")

    register_plugin(Bad(), "bad-logger")
    try:
        with pytest.raises(PluginError, match=r"episode_end.*bad-logger.*disk"):
            play(ScriptedEnv)
    finally:
        unregister_plugin("bad-logger")


# Ctrl-C and the end of a program, as a person at a terminal meets them.


def program(body: str, *, presses: int = 0, expect: str = "ready") -> tuple[str, float]:
    """Runs a program, presses Ctrl-C so often once it printed `expect`, and gives what it printed and how long it took
    from there to its end."""
    head = """
        import asyncio, sys, time, threading
        from scripted_env import AsyncEnv, ScriptedEnv, counts
        from gem_core import *
        from gem_core.rollout.engine import Interrupted
        player = ScriptedPlayer(lambda env, observation: "go")
    """
    path = os.pathsep.join([*SOURCES, str(SUPPORT)])
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(head) + textwrap.dedent(body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "GEM_PLUGINS": "", "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if expect in line:
                break
        began = time.monotonic()
        for _ in range(presses):
            time.sleep(0.15)
            process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=20)
        return "".join(lines) + rest, time.monotonic() - began
    finally:
        process.kill()
        process.communicate()


STREAM = """
    class Slow(AsyncEnv):
        async def on_step(self, action):
            if self.seed >= 3:
                if self.seed == 3:
                    print("ready")
                await asyncio.sleep(60)
            return counts(self, action)

    rollout = Rollout(player, make_env=lambda task: Slow(), concurrency=4)
    def run():
        try:
            rollout.run_batch(tasks_for("test:Env", range(8)))
        except Interrupted as stopped:
            print(stopped, [e.stop.value for e in stopped.episodes])
"""
FINISHED = "interrupted with 3 of 8 episodes finished " + str(
    ["terminated"] * 3 + ["cancelled"] * 5
)


NOTEBOOK = """
    import signal
    async def cell():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as a notebook's kernel has it
        run()
    asyncio.run(cell())
"""


@pytest.mark.parametrize("run", ["    run()", NOTEBOOK], ids=["a program", "a notebook"])
def test_ctrl_c_keeps_finished_episodes(run: str) -> None:
    said, took = program(STREAM + run, presses=1)
    assert FINISHED in said
    assert took < 5


def test_a_second_ctrl_c_ends_a_program_whose_environment_is_stuck() -> None:
    """In Python code of its own, on the event loop's thread: nothing there would ever hear of the first one."""
    said, took = program(
        """
        def stuck(env, action):
            print("ready")
            while True:
                pass
        Rollout(player, make_env=lambda task: ScriptedEnv(stuck)).run_batch([Task("test:Env", 1)])
        """,
        presses=2,
    )
    assert "KeyboardInterrupt" in said
    assert took < 5


@pytest.mark.parametrize("presses", [0, 1], ids=["by itself", "with Ctrl-C"])
def test_a_program_ends_at_once_although_a_step_hangs(presses: int) -> None:
    said, took = program(
        f"""
        def hang(env, action):
            print("ready")
            time.sleep(60)
        limits = Limits(step_deadline={None if presses else 0.2})
        try:
            rollout = Rollout(player, limits=limits, make_env=lambda task: ScriptedEnv(hang, execution="thread"))
            episodes = rollout.run_batch([Task("test:Env", 1)])
        except Interrupted as stopped:
            episodes = stopped.episodes
        print([e.stop.value for e in episodes], rollout.threads.abandoned)
        """,
        presses=presses,
    )
    assert said.endswith("['cancelled'] 1\n" if presses else "['env_deadline'] 1\n")
    assert took < 5


def test_ctrl_c_works_as_before_once_a_run_is_over() -> None:
    before = signal.getsignal(signal.SIGINT)
    run_batch([Task(GAME, 1)], RandomPlayer())
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_transcripts_are_equal_in_any_process(hash_seed: str) -> None:
    """Invariant 5."""
    code = textwrap.dedent(
        """
        import json
        from gem_core import RandomPlayer, run_batch, tasks_for
        mixture = "2*game:GuessTheNumber-v0-random + game:GuessTheNumber-v0-hard"
        episodes = run_batch(tasks_for(mixture, range(20)), RandomPlayer())
        turns = [[[t.messages[-1].content, t.action, t.reward] for t in e.turns] for e in episodes]
        print(json.dumps([[e.component, e.group, said] for e, said in zip(episodes, turns)]))
        """
    )
    env = {
        **os.environ,
        "PYTHONHASHSEED": hash_seed,
        "GEM_PLUGINS": "",
        "PYTHONPATH": os.pathsep.join(SOURCES),
    }
    there = json.loads(
        subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        ).stdout
    )
    episodes = run_batch(
        tasks_for("2*game:GuessTheNumber-v0-random + game:GuessTheNumber-v0-hard", range(20)),
        RandomPlayer(),
    )
    here = [
        [
            e.component,
            list(e.group),
            [[t.messages[-1].content, t.action, t.reward] for t in e.turns],
        ]
        for e in episodes
    ]
    assert there == here


def test_environments_are_kept_from_batch_to_batch_and_closed_with_the_engine() -> None:
    made: list[ScriptedEnv] = []

    def build() -> ScriptedEnv:
        made.append(ScriptedEnv())
        return made[-1]

    with engine(build, concurrency=4) as rollout:
        for _ in range(3):
            assert all(not e.failed for e in rollout.run_batch(tasks_for("test:Env", range(4))))
        assert len(made) == 4
        assert all("close" not in env.log for env in made)
    assert all(env.log.count("close") == 1 for env in made)


def test_a_context_that_is_none_costs_one_episode() -> None:
    def start(env: ScriptedEnv) -> Any:
        return "O", {"context": ["not a Context"]} if env.seed == 1 else {}

    with engine(lambda: ScriptedEnv(begin=start)) as rollout:
        episodes = rollout.run_batch(tasks_for("test:Env", range(3)))
    assert [e.stop is StopReason.ENV_INVALID for e in episodes] == [False, True, False]


def test_a_rewritten_context_begins_a_row_with_the_whole_response_limit() -> None:
    with engine(lambda: Concat(ScriptedEnv()), limits=Limits(max_response=48)) as rollout:
        (episode,) = rollout.run_batch([Task("test:Env", 1)])
    assert len(episode.turns) == 3
    assert all(len(view.ids) - view.prompt_length <= 48 for view in token_sequences(episode))
