"""The real learner: the numbers in oat's loss are the core's, and its critic sees the state."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from worlds import ECHO, MOODY

from gem_core.errors import BatchMismatchError
from gem_core.rollout.renderer import Renderer
from gem_core.training.advantage import advantages
from gem_core.types import Episode, Message, StopReason, Turn
from gem_oat import GemActor, GemConfig
from gem_oat.convert import to_batch
from gem_oat.trainer import GemDataset, _value_of

ON_A_CPU = pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")


def update(learner: Any, batch: Any, info: Any) -> list[Any]:
    """Pass a batch of the actor to the learner; returns the learner's buffer."""
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
    config = GemConfig(
        ECHO, seeds=64, samples=2, advantage=estimator, gamma=0.9, max_turn_tokens=8, concurrency=6
    )
    actor, learner = make_actor(config), make_learner(config)
    buffer = update(learner, *actor.collect_experience())
    assert len(buffer) == 16
    episodes = list({id(t.episode): t.episode for t in buffer if t.episode is not None}.values())
    wanted = [a for numbers in advantages(episodes, estimator, gamma=0.9) for a in numbers]
    assert [t.info["advantages"] for t in buffer if not t.padding] == pytest.approx(
        wanted, abs=1e-9
    )
    assert all(t.info["advantages"] == 0.0 for t in buffer if t.padding)
    assert learner.actor_info["gem/episodes"] == len(episodes)
    assert learner.actor_info["gem/fillers"] == pytest.approx(sum(t.padding for t in buffer) / 16)
    assert learner.actor_info["gem/advantage_abs"] == pytest.approx(
        sum(map(abs, wanted)) / len(wanted), rel=1e-5
    )


def test_the_metrics_count_failed_episodes_and_older_weights(
    make_actor: Callable[..., GemActor], make_learner: Callable[..., Any]
) -> None:
    config = GemConfig(MOODY, seeds=64, max_turn_tokens=8, concurrency=20)
    actor, learner = make_actor(config), make_learner(config)
    for learner.steps in (1, 2, 3):
        learner.pi_buffer.clear()
        buffer = update(learner, *actor.collect_experience())
    turns = [t.episode.turns[t.turn] for t in buffer if not t.padding]
    assert (
        learner.actor_info["gem/older_weights"]
        == sum(turn.versions[0] < 2 for turn in turns) / len(turns)
        > 0
    )
    episodes = {id(t.episode): t.episode for t in buffer if t.episode is not None}.values()
    assert learner.actor_info["gem/failed"] == sum(e.failed for e in episodes) / len(episodes) > 0


def test_a_batch_of_another_size_is_rejected(
    make_actor: Callable[..., GemActor], make_learner: Callable[..., Any]
) -> None:
    config = GemConfig(ECHO, seeds=64, max_turn_tokens=8)
    batch, info = make_actor(config).collect_experience()
    with pytest.raises(BatchMismatchError, match="takes 16"):
        update(make_learner(config), [*batch, batch[0]], info)


def cut(renderer: Renderer, stop: StopReason) -> Episode:
    """Two turns, then the end, or a cut."""
    start, action = renderer.start([Message("user", "hello")]), (40, 41, renderer.turn_end)
    bridge = renderer.bridge([Message("user", "and?")], action)
    turns = [Turn((Message("user", "hello"),), "a", 0.25, start, True, action, (-1.0, -1.0, -1.0))]
    turns.append(
        Turn((Message("user", "and?"),), "b", 0.5, bridge, False, action, (-1.0, -1.0, -1.0))
    )
    return Episode(ECHO, 0, tuple(turns), stop, final_observation="so far")


def test_the_critic_bootstraps_where_an_episode_was_cut_and_only_there(
    make_learner: Callable[..., Any],
) -> None:
    config = GemConfig(ECHO, seeds=8, advantage="gae", gamma=0.9, estimator_kwargs={"lam": 0.8})
    learner = make_learner(config)
    renderer = Renderer(learner.tokenizer)
    ended, cut_short = cut(renderer, StopReason.TERMINATED), cut(renderer, StopReason.TURN_LIMIT)
    buffer = update(learner, to_batch([ended, cut_short], 16, renderer, with_critic=True), {})
    states = [ended.prompt_ids(0), ended.prompt_ids(1)]
    after = (
        *states[1],
        *ended.turns[1].action_ids,
        *renderer.bridge([Message("user", "so far")], ended.turns[1].action_ids),
    )
    v0, v1, v2 = (_value_of(learner.critic, ids) for ids in (*states, after))
    assert len({v0, v1, v2}) == 3
    for transitions, last in ((buffer[:2], 0.0), (buffer[2:4], v2)):
        second = 0.5 + 0.9 * last - v1
        first = 0.25 + 0.9 * v1 - v0 + 0.9 * 0.8 * second
        assert [t.info["advantages"] for t in transitions] == pytest.approx(
            [first, second], abs=1e-6
        )
        assert [t.info["returns"] for t in transitions] == pytest.approx(
            [first + v0, second + v1], abs=1e-6
        )
    assert all(
        t.info["returns"] == t.info["values"] for t in buffer[4:]
    )  # a padding transition's target is its own value


def test_the_critic_is_read_at_the_last_token(make_learner: Callable[..., Any]) -> None:
    """At the first token, where oat 0.2.4 reads it, a causal critic gives every state the same value."""
    learner = make_learner(GemConfig(ECHO, seeds=8, advantage="gae"))
    states = [torch.tensor([[1, 20, 30, 40]]), torch.tensor([[1, 50, 60]])]
    bare = [learner.critic.module(input_ids=s, attention_mask=torch.ones_like(s)) for s in states]
    assert bare[0][0, 0].item() == pytest.approx(bare[1][0, 0].item(), abs=1e-6)
    read = [_value_of(learner.critic, s[0].tolist()) for s in states]
    assert read == pytest.approx([bare[0][0, -1].item(), bare[1][0, -1].item()], abs=1e-6)
    assert abs(read[0] - read[1]) > 1e-4


@ON_A_CPU
@pytest.mark.parametrize("estimator", ["rebn", "gae"])
def test_oats_own_learning_takes_every_batch(
    make_actor: Callable[..., GemActor], make_learner: Callable[..., Any], estimator: str
) -> None:
    """Loss, gradient and critic are finite for a batch with padding, and the sampler's logprobs are the learner's."""
    config = GemConfig(ECHO, seeds=64, advantage=estimator, max_turn_tokens=8, concurrency=6)
    actor, learner = make_actor(config), make_learner(config)
    batch, info = actor.collect_experience()
    update(learner, batch, info)
    learner.gradient_update_st = 0.0
    found = learner.learn(2)
    assert found["train/policy_grad_norm"] > 0
    assert abs(found["train/logprobs_diff_max"]) < 1e-4
    assert abs(found["train/kl_sample_train_v1"]) < 1e-4
    if estimator == "gae":
        assert 0 <= found["train/critic_loss"] < 10


@ON_A_CPU
def test_an_update_raises_what_the_advantages_favour(
    make_actor: Callable[..., GemActor], make_learner: Callable[..., Any]
) -> None:
    """The sum of advantage times log-probability, which oat's optimizer is to raise, rises by its own step."""
    config = GemConfig(ECHO, seeds=64, max_turn_tokens=8, concurrency=6)
    actor, learner = make_actor(config), make_learner(config, learning_rate=1e-4)
    buffer = [t for t in update(learner, *actor.collect_experience()) if not t.padding]

    def objective() -> float:
        total = 0.0
        for t in buffer:
            ids = torch.tensor([[*t.prompt_ids, *t.response_ids]])
            with torch.no_grad():
                logprobs, _ = learner.get_batch_logps(
                    learner.model, ids, torch.ones_like(ids), temperature=1.0
                )
            total += t.info["advantages"] * float(logprobs[0, len(t.prompt_ids) - 1 :].sum())
        return total

    before = objective()
    learner.gradient_update_st = 0.0
    learner.learn(2)
    assert objective() > before + 0.1


def changed_ids(item: dict[str, Any]) -> None:
    item["input_ids"] = item["input_ids"].clone()
    item["input_ids"][-1] += 1


def changed_prompt(item: dict[str, Any]) -> None:
    item["input_ids"] = item["input_ids"].clone()
    item["input_ids"][0] += 1


def shorter_prompt(item: dict[str, Any]) -> None:
    item["prompt_ids_lens"] -= 1


def hidden_prompt(item: dict[str, Any]) -> None:
    item["attention_mask"][0] = 0


def changed_mask(item: dict[str, Any]) -> None:
    item["loss_mask"] = not item["loss_mask"]


def changed_state(item: dict[str, Any]) -> None:
    item["state_ids"] = item["state_ids"][1:]


@ON_A_CPU
@pytest.mark.parametrize("estimator", ["rebn", "gae"])
@pytest.mark.parametrize(
    "change",
    [changed_ids, changed_prompt, shorter_prompt, hidden_prompt, changed_mask, changed_state],
)
def test_a_batch_that_changed_on_its_way_to_the_loss_is_rejected(
    make_actor: Callable[..., GemActor],
    make_learner: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[dict[str, Any]], None],
    estimator: str,
) -> None:
    class Changed(GemDataset):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            change(self.transitions[0])

    config = GemConfig(ECHO, seeds=64, advantage=estimator, max_turn_tokens=8)
    learner = make_learner(config)
    update(learner, *make_actor(config).collect_experience())
    monkeypatch.setattr(learner, "dataset_builder", Changed)
    with pytest.raises(BatchMismatchError, match="transition 0 of oat's batch"):
        learner.learn(2)


def test_a_batch_without_all_transitions_is_rejected(
    make_actor: Callable[..., GemActor], make_learner: Callable[..., Any]
) -> None:
    config = GemConfig(ECHO, seeds=64, max_turn_tokens=8)
    learner = make_learner(config)
    buffer = update(learner, *make_actor(config).collect_experience())
    dataset = GemDataset(buffer, learner.tokenizer, learner.strategy)
    with pytest.raises(BatchMismatchError, match="holds 15 transitions"):
        learner.learning_step(dataset.collate_fn([dataset[i] for i in range(15)]))


@ON_A_CPU
def test_a_padding_transition_that_would_be_trained_is_rejected(
    make_learner: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = make_learner(GemConfig(ECHO, seeds=64))
    buffer = update(learner, to_batch([], 16, Renderer(learner.tokenizer), with_critic=False), {})
    buffer[3].loss_mask = True
    with pytest.raises(BatchMismatchError, match="transition 3"):
        learner.learn(2)
