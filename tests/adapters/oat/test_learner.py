"""The real learner: the numbers in oat's loss are the core's, and its critic sees the state."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gem_core.rollout.renderer import Renderer
from gem_core.training.advantage import advantages
from gem_core.types import Episode, Message, StopReason, Turn
from gem_oat import GemActor, GemSpec
from gem_oat.advantage import BatchSizeError, gather_over, value_of
from gem_oat.rollout import collect

ECHO = "test:Echo-v0"
ON_A_CPU = pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")


def update(learner: Any, batch: Any, info: Any) -> list[Any]:
    """From the actor's hands into the buffer; returns what is in it."""
    for transition in (t for transitions in batch for t in transitions):
        transition.info.update(info)
    batch = pickle.loads(pickle.dumps(batch))
    learner.actor_info = learner.collector.get_metrics(0.0, batch)
    learner.process_feedback_data(batch)
    return list(learner.pi_buffer)


@pytest.mark.parametrize("estimator", ["rebn", "reinforce", "reinforce++", "grpo", "rloo"])
def test_advantages_in_the_buffer_are_the_cores(
    make_actor: Callable[..., GemActor], make_learner: Callable[..., Any], estimator: str
) -> None:
    spec = GemSpec(ECHO, seeds=64, samples=2, advantage=estimator, gamma=0.9, max_turn_tokens=8, concurrency=6)
    actor, learner = make_actor(spec), make_learner(spec)
    buffer = update(learner, *actor.collect_experience())
    assert len(buffer) == 16
    episodes = list({id(t.episode): t.episode for t in buffer if t.episode is not None}.values())
    wanted = [a for numbers in advantages(episodes, estimator, gamma=0.9) for a in numbers]
    assert [t.info["advantages"] for t in buffer if t.episode is not None] == pytest.approx(wanted, abs=1e-9)
    assert all(t.info["advantages"] == 0.0 for t in buffer if t.episode is None)
    assert learner.actor_info["gem/episodes"] == len(episodes)
    assert learner.actor_info["gem/advantage_abs"] == pytest.approx(sum(map(abs, wanted)) / len(wanted), rel=1e-5)
    assert not any(name.startswith("gem_sums") for name in learner.actor_info)


def test_a_batch_oat_would_leave_something_out_of_is_refused(
    make_actor: Callable[..., GemActor], make_learner: Callable[..., Any]
) -> None:
    spec = GemSpec(ECHO, seeds=64, max_turn_tokens=8)
    batch, info = make_actor(spec).collect_experience()
    with pytest.raises(BatchSizeError, match="takes 16"):
        update(make_learner(spec), [*batch, batch[0]], info)


def cut(renderer: Renderer, stop: StopReason) -> Episode:
    """Two turns, then the end, or a cut."""
    start, action = renderer.start([Message("user", "hello")]), (40, 41, renderer.turn_end)
    bridge = renderer.bridge([Message("user", "and?")], action)
    turns = [Turn((Message("user", "hello"),), "a", 0.25, start, True, action, (-1.0, -1.0, -1.0))]
    turns.append(Turn((Message("user", "and?"),), "b", 0.5, bridge, False, action, (-1.0, -1.0, -1.0)))
    return Episode(ECHO, 0, tuple(turns), stop, final_observation="so far")


def test_the_critic_bootstraps_where_an_episode_was_cut_and_only_there(make_learner: Callable[..., Any]) -> None:
    spec = GemSpec(ECHO, seeds=8, advantage="gae", gamma=0.9, estimator_kwargs={"lam": 0.8})
    learner = make_learner(spec)
    renderer = Renderer(learner.tokenizer)
    ended, cut_short = cut(renderer, StopReason.TERMINATED), cut(renderer, StopReason.TURN_LIMIT)
    buffer = update(learner, collect([ended, cut_short], 16, renderer, with_critic=True), {})
    states = [ended.prompt_ids(0), ended.prompt_ids(1)]
    after = (*states[1], *ended.turns[1].action_ids, *renderer.bridge([Message("user", "so far")], ended.turns[1].action_ids))
    v0, v1, v2 = (value_of(learner.critic, ids) for ids in (*states, after))
    assert len({v0, v1, v2}) == 3
    for transitions, last in ((buffer[:2], 0.0), (buffer[2:4], v2)):
        second = 0.5 + 0.9 * last - v1
        first = 0.25 + 0.9 * v1 - v0 + 0.9 * 0.8 * second
        assert [t.info["advantages"] for t in transitions] == pytest.approx([first, second], abs=1e-6)
        assert [t.info["returns"] for t in transitions] == pytest.approx([first + v0, second + v1], abs=1e-6)
    assert all(t.info["returns"] == t.info["values"] for t in buffer[4:])  # a filler's target is its own value


def test_the_critic_is_read_behind_the_state(make_learner: Callable[..., Any]) -> None:
    """At the first token, where oat 0.2.4 reads it, a causal critic gives every state the same value."""
    learner = make_learner(GemSpec(ECHO, seeds=8, advantage="gae"))
    states = [torch.tensor([[1, 20, 30, 40]]), torch.tensor([[1, 50, 60]])]
    bare = [learner.critic.module(input_ids=s, attention_mask=torch.ones_like(s)) for s in states]
    assert bare[0][0, 0].item() == pytest.approx(bare[1][0, 0].item(), abs=1e-6)
    read = [value_of(learner.critic, s[0].tolist()) for s in states]
    assert read == pytest.approx([bare[0][0, -1].item(), bare[1][0, -1].item()], abs=1e-6)
    assert abs(read[0] - read[1]) > 1e-4


@ON_A_CPU
@pytest.mark.parametrize("estimator", ["rebn", "gae"])
def test_oats_own_learning_takes_every_batch(
    make_actor: Callable[..., GemActor], make_learner: Callable[..., Any], estimator: str
) -> None:
    """Loss, gradient and critic are finite for a batch with fillers, and the sampler's logprobs are the learner's."""
    spec = GemSpec(ECHO, seeds=64, advantage=estimator, max_turn_tokens=8, concurrency=6)
    actor, learner = make_actor(spec), make_learner(spec)
    batch, info = actor.collect_experience()
    update(learner, batch, info)
    learner.gradient_update_st = 0.0
    found = learner.learn(2)
    assert found["train/policy_grad_norm"] > 0
    assert abs(found["train/logprobs_diff_max"]) < 1e-4
    assert abs(found["train/kl_sample_train_v1"]) < 1e-4
    if estimator == "gae":
        assert 0 <= found["train/critic_loss"] < 10


def test_objects_are_gathered_by_oats_own_strategy(make_learner: Callable[..., Any]) -> None:
    strategy = make_learner(GemSpec(ECHO, seeds=8)).strategy
    assert gather_over(strategy)({"a": (1, 2.5)}) == [{"a": (1, 2.5)}]
