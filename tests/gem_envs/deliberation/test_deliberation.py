"""Tests of the wrappers plan, reflect and memory."""

from __future__ import annotations

from typing import Any

import pytest
from byte_tokenizer import ByteTokenizer
from scripted_env import ScriptedEnv

from gem_core import make, run_batch, tasks_for
from gem_core.errors import ConfigError
from gem_core.policies.players import ExpertPlayer, RandomPlayer
from gem_core.policies.scripted import ScriptedPolicy
from gem_core.rollout.engine import Rollout
from gem_core.rollout.renderer import Renderer
from gem_core.training.advantage import advantages
from gem_core.training.sequences import discounted_returns, token_sequences
from gem_envs.deliberation.wrappers import Memory, Plan, Reflect

ID = "maze:Random-v0-easy"
ALL = ("plan", "plan(every=2)", "reflect(every=2)", "memory(every=2)", "plan,reflect,memory")


@pytest.mark.parametrize("wrappers", ALL)
def test_expert_and_random_player_play_with_the_wrapper(wrappers: str) -> None:
    plain = run_batch(tasks_for(ID, seeds=range(5)), ExpertPlayer())
    episodes = run_batch(tasks_for(ID, seeds=range(5), wrappers=wrappers), ExpertPlayer())
    assert all(episode.success for episode in episodes)
    assert all(len(b.turns) > len(a.turns) for a, b in zip(plain, episodes, strict=True))
    for episode in run_batch(tasks_for(ID, seeds=range(5), wrappers=wrappers), RandomPlayer()):
        assert not episode.failed


def test_plan_is_not_an_action_and_earns_nothing() -> None:
    env = make(ID, wrappers="plan")
    observation, _ = env.reset(seed=0)
    assert observation.endswith("Do not act yet.")
    observation, reward, terminated, truncated, info = env.step("Action: move up")
    assert (observation, reward) == ("Now act, one action at a time.", 0.0)
    assert (terminated, truncated, info["deliberation"]) == (False, False, True)
    assert env.unwrapped.turn == 0
    env.step("Action: move up")
    assert env.unwrapped.turn == 1


def test_reflection_comes_after_every_second_action() -> None:
    env = make(ID, wrappers="reflect(every=2)")
    env.reset(seed=0)
    asked = []
    for _ in range(6):
        observation, *_ = env.step(env.sample_action())
        asked.append("what will you change" in observation)
    assert asked == [False, True, False, False, True, False]


def texts_and_actions(wrappers: str, turns: int) -> str:
    """Return P, R or M for each turn that is a text, by its request, and A for an action."""
    env = make(ID, wrappers=wrappers)
    observation, _ = env.reset(seed=0)
    kinds = ""
    for _ in range(turns):
        asked = [request[0] for request in REQUESTS if observation.endswith(REQUESTS[request])]
        before = env.unwrapped.turn
        observation, *_, info = env.step(env.sample_action())
        kinds += asked[0] if asked else "A"
        assert info.get("deliberation", False) is bool(asked)
        assert env.unwrapped.turn - before == (not asked)
    return kinds


REQUESTS = {"Plan": Plan.request, "Reflect": Reflect.request, "Memory": Memory.request}


@pytest.mark.parametrize(
    ("wrappers", "kinds"),
    [
        ("plan,reflect(every=2)", "PAARAARA"),
        ("reflect(every=2),plan", "PAARAARA"),
        ("reflect(every=1),memory(every=2)", "ARARMARARM"),
        ("memory(every=2),reflect(every=2),plan(every=2)", "PAAMRPAAMRP"),
        ("plan,plan", "PPAAA"),
    ],
)
def test_stacked_wrappers_count_only_actions_and_ask_one_after_the_other(
    wrappers: str, kinds: str
) -> None:
    assert texts_and_actions(wrappers, len(kinds)) == kinds


def test_memory_shows_the_task_and_the_observation_without_the_requests_of_others() -> None:
    env = Reflect(Memory(Plan(ScriptedEnv(), every=1), every=1), every=1)
    assert env.reset(seed=0)[0] == f"T\n\n{Plan.request}"
    for text in ("plan", "go", "plan"):
        env.step(text)
    observation, *_, info = env.step("notes")
    (message,) = info["context"].messages
    assert message.content == observation
    prompt = "T\n\nYour notes:\nnotes\n\nThe last observation:\nO1"
    assert observation == f"{prompt}\n\n{Reflect.request}"


@pytest.mark.parametrize(("inner", "outer"), [(Plan, Plan), (Reflect, Memory)])
def test_request_after_a_text_replaces_the_reply(inner: Any, outer: Any) -> None:
    env = outer(inner(ScriptedEnv(), every=1), every=1)
    observation, _ = env.reset(seed=0)
    if inner is Reflect:
        observation, *_ = env.step("go")
    assert observation.endswith(f"\n\n{inner.request}")
    assert env.step("text")[0] == outer.request
    env.step("text")
    assert not env.text_wanted
    assert env.step("go")[0] == f"O{1 + (inner is Reflect)}\n\n{inner.request}"


def test_request_after_a_text_replaces_the_reply_in_a_rewritten_history() -> None:
    env = make(ID, wrappers="plan,concat,plan")
    env.reset(seed=0)
    info = env.step("my plan")[4]
    text = info["context"].messages[-1].content
    assert text.endswith(Plan.request) and Plan.reply not in text


def test_request_is_part_of_a_rewritten_history() -> None:
    env = make(ID, wrappers="concat,plan(every=1)")
    _, info = env.reset(seed=0)
    assert info["context"].messages[-1].content.endswith(Plan.request)


def test_notes_replace_the_conversation() -> None:
    env = make(ID, wrappers="memory(every=1,max_characters=12)")
    task, _ = env.reset(seed=0)
    observation, _, _, _, info = env.step("move up")
    assert "context" not in info and "Write notes now" in observation
    prompt, reward, _, _, info = env.step("the goal is far away to the south")
    assert reward == 0.0
    (message,) = info["context"].messages
    assert message.content == prompt
    assert prompt.startswith(task) and "Your notes:\nthe goal is\n" in prompt
    assert prompt.endswith(observation.partition("\n\nWrite notes")[0])


def test_memory_keeps_the_system_prompt() -> None:
    env = make(ID, wrappers="boxed,memory(every=1)")
    _, info = env.reset(seed=0)
    env.step("\\boxed{move up}")
    messages = env.step("notes")[4]["context"].messages
    assert [m.role for m in messages] == ["system", "user"]
    assert messages[0].content == info["system"]


def test_memory_rejects_a_history_wrapper_inside() -> None:
    env = make(ID, wrappers="concat,memory")
    with pytest.raises(ConfigError, match="rewrites the history"):
        env.reset(seed=0)


def test_suffix_is_shown_again_for_the_action() -> None:
    env = Plan(ScriptedEnv(begin=lambda env: ("T", {"suffix": "board"})))
    assert env.reset(seed=0)[1]["suffix"] == "board"
    assert env.step("my plan")[4]["suffix"] == "board"


@pytest.mark.parametrize(("wrapper", "sequences"), [(Plan, 1), (Memory, 3)])
def test_text_is_trained_with_the_return_of_the_actions_after_it(
    wrapper: Any, sequences: int
) -> None:
    """The scripted environment pays 1, 2 and 3; the texts between the actions are unpaid."""
    tokenizer = ByteTokenizer()
    policy = ScriptedPolicy(lambda prompt: "go", tokenizer)
    rollout = Rollout(
        policy, Renderer(tokenizer), make_env=lambda task: wrapper(ScriptedEnv(), every=1)
    )
    with rollout:
        (episode,) = rollout.run_batch(tasks_for("test:Any-v0", seeds=[0]))
    paid = [0.0, 1.0, 0.0, 2.0, 0.0, 3.0] if wrapper is Plan else [1.0, 0.0, 2.0, 0.0, 3.0]
    assert [turn.reward for turn in episode.turns] == paid
    assert all(episode.trained(turn) for turn in range(len(paid)))
    returns = advantages([episode], "reinforce", gamma=0.5)[0]
    assert returns == pytest.approx(discounted_returns(paid, 0.5))
    split = token_sequences(episode)
    assert len(split) == sequences
    trained = {turn for sequence in split for turn in sequence.turn_of if turn >= 0}
    assert trained == set(range(len(paid)))
