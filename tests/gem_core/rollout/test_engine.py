"""Rollout: episodes keep exact tokens, end for a named reason, and fail independently."""

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
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
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
from gem_core.policies.players import ExpertPlayer
from gem_core.rollout.env_pool import EnvPool
from gem_core.rollout.episode_runner import EpisodeRunner
from gem_core.rollout.step_threads import StepThreads
from gem_core.wrappers.history import Concat, ConcatChat, ConcatChatOnReset

GAME = "game:GuessTheNumber-v0-easy"


class Recorder:
    """A policy that samples the listed lines with distinct logprobs and records its prompts."""

    def __init__(self, lines: Sequence[str | Generation], tokenizer: ByteTokenizer) -> None:
        self.lines, self.tokenizer = list(lines), tokenizer
        self.prompts: list[tuple[int, ...]] = []
        self.generations: list[Generation] = []

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        self.prompts.append(tuple(prompt_ids))
        line = self.lines[len(self.generations)]
        if isinstance(line, str):
            ids = (
                *self.tokenizer.encode(line, add_special_tokens=False),
                self.tokenizer.eos_token_id,
            )
            line = Generation(
                ids, tuple(-1.0 - len(self.generations) - i / 1000 for i in range(len(ids)))
            )
        self.generations.append(line)
        prompt_ids.append(0)  # type: ignore[attr-defined]  # must not reach the episode
        return line


def engine(
    env: Callable[[], Env],
    policy: Any = None,
    style: str = "chatml",
    mode: Any = "append",
    **settings: Any,
) -> Rollout:
    """Create a rollout for the environments that `env` makes."""
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
"""The first three bytes of an emoji: encoding their text gives other ids."""
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
def test_trained_ids_are_the_sampled_ids(context: str) -> None:
    """Invariant 1 for every way to build a prompt.

    The turns have thinking, multi-byte characters, a cut character, and nothing at all.
    """
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
    assert [t.action_ids for t in episode.turns] == [g.ids for g in policy.generations]
    assert [t.logprobs for t in episode.turns] == [g.logprobs for g in policy.generations]
    seen = []
    for sequence in token_sequences(episode):
        assert sequence.logprobs is not None
        assert len(sequence.ids) == len(sequence.turn_of) == len(sequence.logprobs)
        assert sequence.turn_of[-1] >= 0, "a sequence ends with a sampled token"
        for turn, start, end in sequence.spans:
            seen.append(turn)
            assert sequence.ids[:start] == episode.prompt_ids(turn), (
                "the ids before an action are the prompt that the policy saw"
            )
            assert sequence.ids[start:end] == policy.generations[turn].ids
            assert sequence.logprobs[start:end] == policy.generations[turn].logprobs
        assert all(p == 0.0 for p, t in zip(sequence.logprobs, sequence.turn_of) if t < 0)
    assert seen == [0, 1, 3, 4], "every turn but the empty one is in exactly one sequence"


def test_append_mode_gives_one_sequence_and_keeps_thinking() -> None:
    lines = [f"<think>{i}</think>\n\nanswer {i}" for i in range(3)]
    (sequence,) = token_sequences(
        play(ScriptedEnv, Recorder(lines, ByteTokenizer("thinking")), style="thinking")
    )
    assert [turn for turn, _, _ in sequence.spans] == [0, 1, 2]
    text = ByteTokenizer().decode(sequence.ids)
    assert text.count("<think>") == 3


def test_template_mode_splits_sequences_when_the_template_rewrites_history() -> None:
    lines = [f"<think>{i}</think>\n\nanswer {i}" for i in range(3)]
    episode = play(
        ScriptedEnv, Recorder(lines, ByteTokenizer("thinking")), style="thinking", mode="template"
    )
    sequences = token_sequences(episode)
    assert [[turn for turn, _, _ in sequence.spans] for sequence in sequences] == [[0], [1], [2]]
    assert "<think>0" not in ByteTokenizer().decode(sequences[1].ids)


def test_a_cut_turn_gets_an_unsampled_end_token() -> None:
    policy = Recorder(
        [Generation((65, 66), (-0.1, -0.2), FinishReason.LENGTH), "x", "y"], ByteTokenizer()
    )
    (sequence,) = token_sequences(play(ScriptedEnv, policy))
    _, _, end = sequence.spans[0]
    assert (sequence.ids[end], sequence.turn_of[end]) == (257, -1)
    _, _, end = sequence.spans[1]
    assert sequence.ids[end - 1] == 257, "a sampled end token belongs to the turn"
    assert sequence.ids[end] != 257, "it is not repeated"


def test_action_text_omits_special_tokens() -> None:
    episode = play(ScriptedEnv, Recorder(["är 1", BROKEN_UTF8, "z"], ByteTokenizer()))
    assert [t.action for t in episode.turns] == ["är 1", "\ufffd", "z"]
    assert [t.reward for t in episode.turns] == [1.0, 2.0, 3.0]
    assert episode.total_reward == 6.0
    assert episode.final_observation == "O3"
    assert [t.messages for t in episode.turns] == [(Message("user", s),) for s in ("T", "O1", "O2")]


def test_suffix_comes_before_the_generation_prompt() -> None:
    begin = lambda env: ("T", {"suffix": "your move", "system": "be brief"})  # noqa: E731
    episode = play(lambda: ScriptedEnv(begin=begin), Recorder(["a", "b", "c"], ByteTokenizer()))
    assert ByteTokenizer().decode(episode.prompt_ids(0)) == (
        "<|begin|><|im_start|>system\nbe brief<|im_end|>\n"
        "<|im_start|>user\nT\nyour move<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


# Stop reasons and turn statuses.


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
    """A policy that generates one valid turn, then returns or raises `then`."""

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
    # "go" and the end token are 3 tokens: 3 + 3 + 1
    "token limit": (loops, {"limits": Limits(max_tokens=7)}, StopReason.TOKEN_LIMIT, [V, V, V]),
    "token limit, exactly": (
        loops,
        {"limits": Limits(max_tokens=6)},
        StopReason.TOKEN_LIMIT,
        [V, V],
    ),
    # the first prompt has 21 tokens, each observation 22: 21 + 3 + 22 + 3 + 22 = 71
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
    "cut, continues": (
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
    "invalid: not five values": (lambda env, action: "hello", {}, StopReason.ENV_INVALID, [X]),
    "invalid: reward NaN": (
        lambda env, action: ("O", float("nan"), False, False, {}),
        {},
        StopReason.ENV_INVALID,
        [X],
    ),
    "invalid: observation not a string": (
        lambda env, action: (b"O", 0.0, False, False, {}),
        {},
        StopReason.ENV_INVALID,
        [X],
    ),
    "invalid: reward a string": (
        lambda env, action: ("O", "1.0", False, False, {}),
        {},
        StopReason.ENV_INVALID,
        [X],
    ),
    "invalid: reward too large for a float": (
        lambda env, action: ("O", 10**400, False, False, {}),
        {},
        StopReason.ENV_INVALID,
        [X],
    ),
    "invalid: terminated a string": (
        lambda env, action: ("O", 0.0, "no", False, {}),
        {},
        StopReason.ENV_INVALID,
        [X],
    ),
    "policy error": (loops, {"policy": BadPolicy(ValueError("oom"))}, StopReason.POLICY_ERROR, [V]),
    "policy returns no Generation": (
        loops,
        {"policy": BadPolicy("text")},
        StopReason.POLICY_ERROR,
        [V],
    ),
    "policy returns too many ids": (
        loops,
        {"policy": BadPolicy(Generation((65,) * 513))},
        StopReason.POLICY_ERROR,
        [V],
    ),
    "policy returns too few logprobs": (
        loops,
        {"policy": BadPolicy(Generation((65, 66), (-1.0,)))},
        StopReason.POLICY_ERROR,
        [V],
    ),
    "policy returns a NaN logprob": (
        loops,
        {"policy": BadPolicy(Generation((65,), (float("nan"),)))},
        StopReason.POLICY_ERROR,
        [V],
    ),
    "policy returns a negative id": (
        loops,
        {"policy": BadPolicy(Generation((-1,), (-1.0,)))},
        StopReason.POLICY_ERROR,
        [V],
    ),
    "policy returns floats as ids": (
        loops,
        {"policy": BadPolicy(Generation((6.5,), (-1.0,)))},
        StopReason.POLICY_ERROR,
        [V],
    ),  # type: ignore[arg-type]
    "policy returns ids outside the vocabulary": (
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
        {"policy": BadPolicy(never), "limits": Limits(episode_deadline=1.0)},
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
def test_every_ending_has_its_stop_reason_and_turn_statuses(
    why: str, kind: type[ScriptedEnv]
) -> None:
    answer, settings, stop, statuses = STOPS[why]
    if isinstance(settings.get("policy"), BadPolicy):
        settings = {**settings, "policy": BadPolicy(settings["policy"].then)}
    elif isinstance(settings.get("policy"), ScriptedPolicy):
        settings = {**settings, "policy": ScriptedPolicy(["one"], ByteTokenizer())}
    episode = play(lambda: kind(answer), **settings)
    if sys.version_info < (3, 11) and why == "environment cancels itself":
        stop = StopReason.CANCELLED  # Python 3.10 cannot tell who cancelled
    assert (episode.stop, [t.status for t in episode.turns]) == (stop, statuses), episode.failure
    assert episode.failed == stop.failed == (episode.failure is not None)
    for turn in episode.turns:
        assert (turn.reward is None) == (turn.status is TurnStatus.FAILED), (
            "only a failed turn has no reward"
        )
    assert (token_sequences(episode) == []) == (episode.failed or not statuses)
    assert pickle.loads(pickle.dumps(episode)) == episode


def test_the_table_covers_every_stop_reason_but_two() -> None:
    """The two others need threads or Ctrl-C and have separate tests below."""
    assert set(StopReason) - {stop for _, _, stop, _ in STOPS.values()} == {
        StopReason.ENV_DEADLINE,
        StopReason.CANCELLED,
    }


def test_failure_names_the_error_and_the_call() -> None:
    failure = play(lambda: ScriptedEnv(raises(RuntimeError("boom")))).failure
    assert failure is not None
    assert str(failure) == "RuntimeError in step: boom"
    assert "in answer" in failure.traceback

    def unavailable() -> Env:
        raise OSError("no such world")

    episode = play(unavailable)
    assert (str(episode.failure), episode.turns, episode.stop) == (
        "OSError in make: no such world",
        (),
        StopReason.ENV_ERROR,
    )
    episode = play(lambda: ScriptedEnv(begin=lambda env: ("T", None)))  # type: ignore[arg-type,return-value]
    assert episode.stop is StopReason.ENV_INVALID
    assert episode.failure is not None
    assert episode.failure.where == "reset"


def test_empty_generation_steps_the_environment_with_an_empty_action() -> None:
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


def test_a_turn_of_only_the_end_token_is_valid() -> None:
    (turn, *_) = play(ScriptedEnv, Recorder(["", "", ""], ByteTokenizer())).turns
    assert (turn.action_ids, turn.action, turn.status) == ((257,), "", TurnStatus.VALID)


def test_max_tokens_of_a_turn_shrinks_to_the_remaining_limits() -> None:
    requests: list[tuple[int, int]] = []

    class FillingPolicy:
        async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
            requests.append((len(prompt_ids), sampling.max_tokens))
            return Generation(
                (65,) * sampling.max_tokens, (-1.0,) * sampling.max_tokens, FinishReason.LENGTH
            )

    first = len(Renderer(ByteTokenizer()).start([Message("user", "T")]))
    play(
        lambda: ScriptedEnv(loops),
        FillingPolicy(),
        sampling=Sampling(max_tokens=10),
        limits=Limits(max_tokens=25),
    )
    assert [cap for _, cap in requests] == [10, 10, 5]
    requests.clear()
    episode = play(
        lambda: ScriptedEnv(loops), FillingPolicy(), limits=Limits(max_context=first + 4)
    )
    assert requests == [(first, 4)]
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
def test_limits_reject_invalid_values(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Limits(**wrong)


# Deadlines.


def test_a_hanging_step_fails_only_its_own_episode(hang: Hang) -> None:
    """One of several blocking environments hangs forever; the others do not wait."""
    rollout = Rollout(
        ScriptedPolicy(lambda prompt: "go", ByteTokenizer()),
        Renderer(ByteTokenizer()),
        limits=Limits(step_deadline=2.0),
        concurrency=4,
        make_env=lambda task: ScriptedEnv(hang if task.seed == 2 else counts, execution="thread"),
    )
    began = time.monotonic()
    episodes = rollout.run_batch(tasks_for("test:Env", range(8)))
    assert time.monotonic() - began < 20
    assert [e.stop for e in episodes] == [StopReason.TERMINATED] * 2 + [StopReason.ENV_DEADLINE] + [
        StopReason.TERMINATED
    ] * 5
    assert episodes[2].turns[0].status is TurnStatus.FAILED
    assert str(episodes[2].failure) == "DeadlineError in step: step took over 2 s"
    assert rollout.threads.abandoned == 1


def test_pool_close_closes_async_environments_without_an_event_loop() -> None:
    log: list[str] = []
    pool, task = EnvPool(StepThreads(1), lambda task: AsyncEnv(log=log)), Task("any")
    env = pool.take(task)
    assert isinstance(env, AsyncEnv)
    pool.give(task, env)
    pool.close()
    assert log == ["make", "close"]


def test_pool_keeps_objects_by_whose_ids_it_tells_tasks_apart() -> None:
    """Another object could get the id of a freed one, and the environment made with that one."""
    pool, wrapper = EnvPool(StepThreads(1), lambda task: ScriptedEnv()), partial(Concat)
    task, kept = Task("any", wrappers=(wrapper,)), weakref.ref(wrapper)
    env = pool.take(task)
    assert isinstance(env, ScriptedEnv)
    pool.give(task, env)
    del task, wrapper
    assert kept() is not None


def test_pool_closes_environments_of_arguments_that_were_used_long_ago() -> None:
    log: list[str] = []
    open_now = set[int]()

    def make_env(task: Task) -> ScriptedEnv:
        class Env(ScriptedEnv):
            def on_close(self) -> None:
                open_now.remove(task.env_kwargs["number"])

        open_now.add(task.env_kwargs["number"])
        log.append("make")
        return Env()

    tasks = [Task("any", env_kwargs={"number": number}) for number in range(300)]
    player = ScriptedPlayer(lambda env, observation: "a")
    with Rollout(player, make_env=make_env, concurrency=1) as rollout:
        rollout.run_batch([task for number in tasks[1:] for task in (tasks[0], number)])
        assert open_now == {0, *range(45, 300)}  # 256 kinds of arguments, the last used
        assert len(log) == 300
    assert not open_now


def test_seed_of_another_library_is_recorded_as_a_number() -> None:
    class Number:
        def __index__(self) -> int:
            return 7

    seed = play(ScriptedEnv, seed=Number()).seed  # type: ignore[arg-type]
    assert type(seed) is int and seed == 7


@pytest.mark.parametrize("seed", ["3", "", 1.5, 0.0, True])
def test_task_rejects_a_seed_that_is_no_integer(seed: Any) -> None:
    with pytest.raises(ConfigError, match="must be an integer or None"):
        Task("test:Echo-v0", seed)


def test_player_of_a_slow_environment_does_not_delay_other_episodes() -> None:
    class Slow(ScriptedEnv):
        def sample_action(self) -> str:
            time.sleep(30.0)
            return "late"

    def make_env(task: Task) -> Env:
        return Slow(execution="thread") if task.env_id == "test:Slow-v0" else ScriptedEnv()

    limits, ends = Limits(generate_deadline=0.1), []
    with Rollout(RandomPlayer(), limits=limits, make_env=make_env) as rollout:
        began = time.monotonic()
        tasks = [Task("test:Slow-v0", 0), Task("test:Scripted-v0", 0)]
        ends = [(e.env_id, e.stop) for e in rollout.run_batch(tasks)]
        assert time.monotonic() - began < 20
    assert ends[0] == ("test:Slow-v0", StopReason.POLICY_DEADLINE)


def test_expert_begins_again_after_an_environment_error() -> None:
    crashes = iter([False, True])

    class Crashing(ScriptedEnv):
        def on_step(self, action: str) -> Any:
            if next(crashes, False):
                raise OSError("lost")
            return super().on_step(action)

        def expert(self) -> Any:
            yield from ("first", "second", "third")

    limits = Limits(retries=1)
    with Rollout(ExpertPlayer(), limits=limits, make_env=lambda task: Crashing()) as rollout:
        (episode,) = rollout.run_batch([Task("test:Crashing-v0", 0)])
    assert [turn.action for turn in episode.turns] == ["first", "second", "third"]


def test_model_is_not_a_policy() -> None:
    class Model:
        generation_config = object()

        def generate(self) -> None: ...

    class Client:
        chat = object()

    for other in (Model(), Client()):
        with pytest.raises(ConfigError, match="wrap a model in TransformersPolicy"):
            Rollout(other)  # type: ignore[arg-type]


def test_info_may_contain_a_class_that_cannot_be_copied() -> None:
    class Dotted(dict[str, int]):
        __getattr__ = dict.__getitem__

    def step(env: ScriptedEnv, action: str) -> Any:
        return "next", 0.0, True, False, {"state": Dotted(hp=1)}

    assert play(lambda: ScriptedEnv(step)).turns[0].info["state"] == {"hp": 1}


def test_info_of_a_turn_does_not_change_in_later_turns() -> None:
    class Counting(ScriptedEnv):
        def on_reset(self, options: Any) -> Any:
            self.counted, self.pair = Counter[str](), ("log", list[int]())
            return super().on_reset(options)

        def on_step(self, action: str) -> Any:
            self.counted["n"] += 1
            self.pair[1].append(1)
            ended = self.counted["n"] == 2
            return "next", 0.0, ended, False, {"counted": self.counted, "pair": self.pair}

    first, second = (turn.info for turn in play(Counting).turns)
    assert (first["counted"], first["pair"]) == ({"n": 1}, ("log", [1]))
    assert (second["counted"], second["pair"]) == ({"n": 2}, ("log", [1, 1]))


@pytest.mark.parametrize("where", ["reset", "step"])
def test_a_hanging_async_environment_is_cancelled_at_its_deadline(where: str) -> None:
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
        assert cancelled == [where], "cancelled at once, not at the end of the program"
        return episode

    episode = asyncio.run(main())
    assert episode.stop is StopReason.ENV_DEADLINE
    assert episode.failure is not None
    assert episode.failure.where == where


def test_an_environment_that_ignores_cancellation_is_abandoned() -> None:
    async def main() -> Episode:
        done = asyncio.Event()

        class Deaf(AsyncEnv):
            async def on_step(self, action: str) -> Any:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    await done.wait()
                return "late", 1.0, True, False, {}

        limits = Limits(step_deadline=0.05)
        episode = await asyncio.wait_for(
            engine(Deaf, limits=limits).episode(Task("test:Env", 1)), 20
        )
        done.set()
        await asyncio.sleep(0)  # let the abandoned step end before the loop does
        return episode

    assert asyncio.run(main()).stop is StopReason.ENV_DEADLINE


def test_episode_deadline_covers_all_steps_and_is_not_retried() -> None:
    class Slow(AsyncEnv):
        async def on_step(self, action: str) -> Any:
            await asyncio.sleep(0.03)
            return "O", 0.0, False, False, {}

    began = time.monotonic()
    episode = play(Slow, limits=Limits(episode_deadline=1.0, step_deadline=5, retries=5))
    assert time.monotonic() - began < 10
    assert (episode.stop, episode.attempts) == (StopReason.EPISODE_DEADLINE, 1)
    assert len(episode.turns) >= 2


# Retries.


def test_a_retry_replays_the_actions_and_continues() -> None:
    """The policy generates each turn once; a retry does not sample it again."""
    crashes: list[int] = []

    def answer(env: ScriptedEnv, action: str) -> Any:
        if env.turn == 2 and not crashes:
            crashes.append(1)
            raise ConnectionError("gone")
        return counts(env, action)

    log: list[str] = []
    policy = Recorder(["a", "b", "c"], ByteTokenizer())
    episode = play(lambda: ScriptedEnv(answer, log=log), policy, limits=Limits(retries=1))
    plain = play(ScriptedEnv, Recorder(["a", "b", "c"], ByteTokenizer()))
    assert (episode.turns, episode.stop) == (plain.turns, plain.stop)
    assert (episode.attempts, plain.attempts, len(policy.generations)) == (2, 1, 3)
    assert [entry for entry in log if entry != "close"] == [
        *("make", "reset", "step a", "step b", "step c"),
        *("make", "reset", "step a", "step b", "step c"),
    ]
    assert log.count("close") == 2


def test_a_replay_that_diverges_restarts_the_episode() -> None:
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
        "the diverging environment is closed too"
    )


def test_a_replay_that_ends_early_restarts_the_episode() -> None:
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
def test_an_environment_that_always_raises_fails_after_its_retries(retries: int) -> None:
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


def test_a_failed_environment_is_not_reused() -> None:
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
    assert len(made) == 2, "the second environment plays the last two episodes"
    assert [env.log.count("close") for env in made] == [1, 1]


# Concurrency.


@pytest.mark.parametrize("execution", ["inline", "thread"])
def test_one_crashing_environment_of_64_fails_one_episode(execution: str) -> None:
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


def test_episodes_arrive_as_they_finish_without_waiting_for_the_slowest() -> None:
    order: list[int] = []
    rollout = engine(delays({0: 0.5, 1: 0.03}), concurrency=2)
    episodes = rollout.run_batch(
        tasks_for("test:Env", range(6)), on_episode=lambda e: order.append(e.index)
    )
    assert [e.index for e in episodes] == list(range(6))
    assert order == [1, 2, 3, 4, 5, 0], (
        "five episodes share one slot while the slow one holds the other"
    )


@pytest.mark.parametrize(
    "policy",
    [ScriptedPolicy(lambda prompt: "go", ByteTokenizer()), ScriptedPlayer(lambda env, _: "go")],
)
def test_episodes_take_turns_even_if_nothing_awaits(policy: Any) -> None:
    order: list[int] = []

    def answer(env: ScriptedEnv, action: str) -> Any:
        order.append(env.seed)
        return counts(env, action)

    engine(lambda: ScriptedEnv(answer), policy, concurrency=2).run_batch(
        tasks_for("test:Env", range(2))
    )
    assert order == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize("limit", [1, 3, 8])
def test_concurrency_is_reached_and_not_exceeded(limit: int) -> None:
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


def test_stream_draws_tasks_on_demand() -> None:
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


def test_closing_a_stream_early_ends_its_running_episodes() -> None:
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
    assert time.monotonic() - began < 30
    assert log.count("make") == log.count("close") == 4


def test_an_exception_in_on_episode_reaches_the_caller() -> None:
    def complain(episode: Episode) -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        engine(ScriptedEnv).run_batch(tasks_for("test:Env", range(3)), on_episode=complain)


def test_stop_ends_the_batch_and_returns_an_episode_per_task() -> None:
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


def test_stop_between_batches_does_not_affect_the_next_batch() -> None:
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


@pytest.mark.parametrize("begun", [False, True], ids=["first batch", "second batch"])
def test_stop_works_before_the_first_episode_of_a_batch(begun: bool) -> None:
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


def test_stop_from_another_thread_ends_the_batch() -> None:
    stepping = threading.Event()

    class Slow(AsyncEnv):
        async def on_step(self, action: str) -> Any:
            stepping.set()
            await asyncio.sleep(60)

    rollout = engine(Slow, concurrency=2)
    threading.Thread(target=lambda: stepping.wait(60) and rollout.stop()).start()
    began = time.monotonic()
    assert [e.stop for e in rollout.run_batch(tasks_for("test:Env", range(4)))] == [
        StopReason.CANCELLED
    ] * 4
    assert time.monotonic() - began < 30


def test_run_batch_works_inside_a_running_event_loop() -> None:
    """As in a notebook."""

    async def cell() -> list[Episode]:
        return run_batch(tasks_for(GAME, range(3)), RandomPlayer())

    assert [e.failed for e in asyncio.run(cell())] == [False] * 3


def test_one_engine_plays_several_batches() -> None:
    rollout = engine(lambda: ScriptedEnv(execution="thread"), concurrency=4)
    for _ in range(3):
        assert [e.stop for e in rollout.run_batch(tasks_for("test:Env", range(5)))] == [
            StopReason.TERMINATED
        ] * 5


def test_slow_constructors_run_concurrently() -> None:
    """The constructors of a registered environment block on separate threads."""
    from gem_core import register
    from gem_core.env.registry import environments

    all_begun = threading.Barrier(8, timeout=60)

    class SlowToMake(ScriptedEnv):
        execution = "thread"

        def __init__(self) -> None:
            super().__init__(execution="thread")
            all_begun.wait()  # raises if the constructors do not run concurrently

    register("test:SlowToMake-v0", SlowToMake)
    try:
        episodes = run_batch(
            tasks_for("test:SlowToMake-v0", range(8)),
            ScriptedPlayer(lambda env, observation: "go"),
            concurrency=8,
        )
        assert not any(e.failed for e in episodes)
    finally:
        environments.remove("test:SlowToMake-v0")


@pytest.mark.parametrize("kind", [ScriptedEnv, AsyncEnv])
def test_an_environment_made_after_its_deadline_is_closed(kind: type[ScriptedEnv]) -> None:
    """Also if its event loop has ended by then."""
    from gem_core import register
    from gem_core.env.registry import environments

    log: list[str] = []

    def slow_to_make() -> Env:
        time.sleep(3.0)  # on a busy machine a deadline of 0.1 s may fire a second late
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


def test_an_environment_is_closed_if_the_run_is_cancelled_as_it_is_made() -> None:
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


# Episode fields.


def test_a_task_without_a_seed_draws_and_records_one() -> None:
    player = RandomPlayer()
    first, second = run_batch([Task(GAME), Task(GAME)], player)
    assert first.seed != second.seed
    (again,) = run_batch([Task(GAME, first.seed)], player)
    assert [(t.action, t.reward, t.messages) for t in again.turns] == [
        (t.action, t.reward, t.messages) for t in first.turns
    ]


def test_episodes_share_a_group_only_if_seed_and_settings_are_equal() -> None:
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


def test_a_mixture_records_the_environment_it_played() -> None:
    mixture = "game:GuessTheNumber-v0-easy + game:GuessTheNumber-v0-hard"
    episodes = run_batch(tasks_for(mixture, range(20)), RandomPlayer())
    assert {e.component for e in episodes} == {
        "game:GuessTheNumber-v0-easy",
        "game:GuessTheNumber-v0-hard",
    }
    assert all(e.played_id == e.component and e.env_id == mixture for e in episodes)


def test_truncated_before_failed_returns_the_prefix() -> None:
    episode = play(lambda: ScriptedEnv(raises(OSError("x"))))
    prefix = episode.truncated_before_failed()
    assert (prefix.stop, prefix.failed, len(prefix.turns), prefix.total_reward) == (
        StopReason.TRUNCATED,
        False,
        1,
        1.0,
    )
    finished = play(ScriptedEnv)
    assert finished.truncated_before_failed() is finished


def test_success_comes_from_the_environments_info() -> None:
    for value in (True, False, None):
        info = {} if value is None else {"success": value}
        episode = play(
            lambda info=info: ScriptedEnv(lambda env, action: ("O", 0.0, True, False, info))
        )  # type: ignore[misc]
        assert episode.success is value
    assert play(lambda: ScriptedEnv(raises(OSError("x")))).success is None


# Policy, chat policy and player.


class Chat:
    """A chat policy without token ids."""

    def __init__(self) -> None:
        self.seen: list[list[dict[str, str]]] = []

    async def chat(self, messages: Sequence[Message], sampling: Sampling) -> Generation:
        self.seen.append([m.as_dict() for m in messages])
        return Generation((), text=f"answer {len(self.seen)}")


def test_a_chat_policy_sees_the_conversation_and_is_not_trainable() -> None:
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
    with pytest.raises(ValueError, match="has no token ids"):
        token_sequences(episode)


def test_a_chat_policy_sees_a_rewritten_context() -> None:
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
def test_a_player_that_returns_no_string_fails_the_episode(answer: Any) -> None:
    episode = play(ScriptedEnv, ScriptedPlayer(lambda env, observation: answer))
    assert episode.stop is StopReason.POLICY_ERROR


def test_a_player_sees_the_environment_and_may_be_async() -> None:
    async def best(env: Env, observation: str) -> str:
        await asyncio.sleep(0)
        return f"\\boxed{{{env.secret}}}"  # type: ignore[attr-defined]

    (episode,) = run_batch([Task(GAME, 3)], ScriptedPlayer(best))
    assert (episode.success, episode.total_reward, len(episode.turns)) == (True, 1.0, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((object(),), "object is not a policy"),
        ((ScriptedPolicy([], ByteTokenizer()),), "needs a renderer"),
    ],
)
def test_rollout_rejects_a_non_policy_and_a_missing_renderer(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Rollout(*arguments)


@pytest.mark.parametrize("concurrency", [0, -1, True, 2.5])
def test_rollout_rejects_invalid_concurrency(concurrency: Any) -> None:
    with pytest.raises(ConfigError, match="concurrency"):
        Rollout(RandomPlayer(), concurrency=concurrency)


def test_sampling_from_a_cut_distribution_warns() -> None:
    with pytest.warns(UserWarning, match="top_p"):
        engine(ScriptedEnv, sampling=Sampling(top_p=0.9))


# One environment object.


def test_run_episode_does_not_close_the_callers_environment() -> None:
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
    assert env.reset(seed=4) == ("T", {}), "the environment is synchronous again"


def test_run_episode_takes_wrapper_names_only_with_an_id() -> None:
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


def test_plugins_receive_episode_turn_and_batch_events() -> None:
    listener = Listener()
    register_plugin(listener, "listener")
    try:
        play(ScriptedEnv, seed=7)
        play(lambda: ScriptedEnv(raises(OSError("x"))), seed=8)
        with engine(ScriptedEnv) as rollout:
            rollout.run_batch([Task("test:Env", 9)], evaluation=True)
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
        *(
            ("start", 9),
            ("turn", 0, 1.0),
            ("turn", 1, 2.0),
            ("turn", 2, 3.0),
            ("end", StopReason.TERMINATED),
        ),
    ]
    play(ScriptedEnv)
    assert len(listener.events) == 16, "an unregistered plugin receives nothing"


def test_a_failing_plugin_is_named_in_the_error() -> None:
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


# Ctrl-C and program exit.


def program(body: str, *, presses: int = 0, expect: str = "ready") -> tuple[str, float]:
    """Run a program and press Ctrl-C `presses` times after it prints `expect`.

    Returns its output and the seconds from there to its exit.
    """
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
                if self.seed == 6:  # it starts when 0, 1 and 2 have ended
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
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a notebook kernel
        run()
    asyncio.run(cell())
"""


@pytest.mark.parametrize("run", ["    run()", NOTEBOOK], ids=["a program", "a notebook"])
def test_ctrl_c_keeps_finished_episodes(run: str) -> None:
    output, took = program(STREAM + run, presses=1)
    assert FINISHED in output
    assert took < 5


def test_a_second_ctrl_c_ends_a_program_whose_environment_is_stuck() -> None:
    """Busy Python code on the event loop's thread never handles the first Ctrl-C."""
    output, took = program(
        """
        def stuck(env, action):
            print("ready")
            while True:
                pass
        Rollout(player, make_env=lambda task: ScriptedEnv(stuck)).run_batch([Task("test:Env", 1)])
        """,
        presses=2,
    )
    assert "KeyboardInterrupt" in output
    assert took < 5


@pytest.mark.parametrize("presses", [0, 1], ids=["by itself", "with Ctrl-C"])
def test_a_program_exits_while_a_step_hangs(presses: int) -> None:
    output, took = program(
        f"""
        def hang(env, action):
            print("ready")
            time.sleep(60)
        limits = Limits(step_deadline={None if presses else 0.2})
        try:
            make_env = lambda task: ScriptedEnv(hang, execution="thread")
            rollout = Rollout(player, limits=limits, make_env=make_env)
            episodes = rollout.run_batch([Task("test:Env", 1)])
        except Interrupted as stopped:
            episodes = stopped.episodes
        print([e.stop.value for e in episodes], rollout.threads.abandoned)
        """,
        presses=presses,
    )
    assert output.endswith("['cancelled'] 1\n" if presses else "['env_deadline'] 1\n")
    assert took < 5


def test_run_batch_restores_the_ctrl_c_handler() -> None:
    before = signal.getsignal(signal.SIGINT)
    run_batch([Task(GAME, 1)], RandomPlayer())
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_transcripts_are_equal_under_any_hash_seed(hash_seed: str) -> None:
    """Invariant 5."""
    code = textwrap.dedent(
        """
        import json
        from gem_core import RandomPlayer, run_batch, tasks_for
        mixture = "2*game:GuessTheNumber-v0-random + game:GuessTheNumber-v0-hard"
        episodes = run_batch(tasks_for(mixture, range(20)), RandomPlayer())
        turns = [[[t.messages[-1].content, t.action, t.reward] for t in e.turns] for e in episodes]
        print(json.dumps([[e.component, e.group, t] for e, t in zip(episodes, turns)]))
        """
    )
    env = {
        **os.environ,
        "PYTHONHASHSEED": hash_seed,
        "GEM_PLUGINS": "",
        "PYTHONPATH": os.pathsep.join(SOURCES),
    }
    other_process = json.loads(
        subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        ).stdout
    )
    episodes = run_batch(
        tasks_for("2*game:GuessTheNumber-v0-random + game:GuessTheNumber-v0-hard", range(20)),
        RandomPlayer(),
    )
    this_process = [
        [
            e.component,
            list(e.group),
            [[t.messages[-1].content, t.action, t.reward] for t in e.turns],
        ]
        for e in episodes
    ]
    assert other_process == this_process


def test_environments_are_reused_across_batches_and_closed_with_the_engine() -> None:
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


def test_an_invalid_context_fails_only_its_own_episode() -> None:
    def start(env: ScriptedEnv) -> Any:
        return "O", {"context": ["not a Context"]} if env.seed == 1 else {}

    with engine(lambda: ScriptedEnv(begin=start)) as rollout:
        episodes = rollout.run_batch(tasks_for("test:Env", range(3)))
    assert [e.stop is StopReason.ENV_INVALID for e in episodes] == [False, True, False]


def test_a_rewritten_context_gets_the_full_response_limit() -> None:
    with engine(lambda: Concat(ScriptedEnv()), limits=Limits(max_response=48)) as rollout:
        (episode,) = rollout.run_batch([Task("test:Env", 1)])
    assert len(episode.turns) == 3
    assert all(len(s.ids) - s.prompt_length <= 48 for s in token_sequences(episode))
