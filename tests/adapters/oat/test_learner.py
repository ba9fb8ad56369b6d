"""oat's real learner: gem's advantages in its loss, and the critic's values."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from thinking_template import STRIPPING
from worlds import ECHO, MOODY

from gem_core.adapter_kit.patching import patched
from gem_core.errors import BatchMismatchError
from gem_core.rollout.renderer import Renderer
from gem_core.training.advantage import advantages
from gem_core.types import Episode, Message, StopReason, Turn, TurnStatus
from gem_oat import GemActor, GemConfig
from gem_oat.convert import to_batch
from gem_oat.critic import value_of
from gem_oat.trainer import GemDataset

ON_A_CPU = pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")


def update(learner: Any, batch: Any, info: Any) -> list[Any]:
    """Pass a batch of the actor to the learner, and return the learner's buffer."""
    for transition in (t for transitions in batch for t in transitions):
        transition.info.update(info)
    batch = pickle.loads(pickle.dumps(batch))
    learner.actor_info = learner.collector.get_metrics(0.0, batch)
    learner.process_feedback_data(batch)
    return list(learner.pi_buffer)


@pytest.mark.parametrize("estimator", ["rebn", "reinforce", "reinforce++", "grpo", "rloo"])
def test_buffer_has_the_advantages_of_the_estimator(
    make_actor: Callable[..., GemActor], make_learner: Callable[..., Any], estimator: str
) -> None:
    config = GemConfig(
        ECHO, seeds=64, samples=2, advantage=estimator, gamma=0.9, max_turn_tokens=8, concurrency=6
    )
    actor, learner = make_actor(config), make_learner(config)
    buffer = update(learner, *actor.collect_experience())
    assert len(buffer) == 16
    episodes = list({id(t.episode): t.episode for t in buffer if t.episode is not None}.values())
    expected = [a for numbers in advantages(episodes, estimator, gamma=0.9) for a in numbers]
    actual = [t.info["advantages"] for t in buffer if not t.padding]
    assert actual == pytest.approx(expected, abs=1e-9)
    assert all(t.info["advantages"] == 0.0 for t in buffer if t.padding)
    info = learner.actor_info
    assert info["gem/episodes"] == len(episodes)
    assert info["gem/padding"] == pytest.approx(sum(t.padding for t in buffer) / 16)
    mean = sum(map(abs, expected)) / len(expected)
    assert info["gem/advantage_abs"] == pytest.approx(mean, rel=1e-5)


def test_metrics_count_failed_episodes_and_older_weights(
    make_actor: Callable[..., GemActor], make_learner: Callable[..., Any]
) -> None:
    config = GemConfig(MOODY, seeds=64, max_turn_tokens=8, concurrency=20)
    actor, learner = make_actor(config), make_learner(config)
    for learner.steps in (1, 2, 3):
        learner.pi_buffer.clear()
        buffer = update(learner, *actor.collect_experience())
    turns = [t.episode.turns[t.turn] for t in buffer if not t.padding]
    older = sum(turn.versions[0] < 2 for turn in turns) / len(turns)
    assert learner.actor_info["gem/older_weights"] == older > 0
    episodes = {id(t.episode): t.episode for t in buffer if t.episode is not None}.values()
    assert learner.actor_info["gem/failed"] == sum(e.failed for e in episodes) / len(episodes) > 0


def test_batch_of_another_size_is_rejected(
    make_actor: Callable[..., GemActor], make_learner: Callable[..., Any]
) -> None:
    config = GemConfig(ECHO, seeds=64, max_turn_tokens=8)
    batch, info = make_actor(config).collect_experience()
    with pytest.raises(BatchMismatchError, match="expected a batch of 16 transitions"):
        update(make_learner(config), [*batch, batch[0]], info)


def two_turns(renderer: Renderer, stop: StopReason) -> Episode:
    """Return an episode of two turns that ended for this reason."""
    start, action = renderer.start([Message("user", "hello")]), (40, 41, renderer.turn_end)
    bridge = renderer.bridge([Message("user", "and?")], action)
    turns = [Turn((Message("user", "hello"),), "a", 0.25, start, True, action, (-1.0, -1.0, -1.0))]
    turns.append(
        Turn((Message("user", "and?"),), "b", 0.5, bridge, False, action, (-1.0, -1.0, -1.0))
    )
    return Episode(ECHO, 0, tuple(turns), stop, final_observation="so far")


@pytest.mark.setting("Critic", "works")
def test_critic_bootstraps_only_after_a_cut(make_learner: Callable[..., Any]) -> None:
    config = GemConfig(ECHO, seeds=8, advantage="gae", gamma=0.9, estimator_kwargs={"lam": 0.8})
    learner = make_learner(config)
    renderer = Renderer(learner.tokenizer)
    ended = two_turns(renderer, StopReason.TERMINATED)
    cut = two_turns(renderer, StopReason.TURN_LIMIT)
    buffer = update(learner, to_batch([ended, cut], 16, renderer, with_critic=True), {})
    states = [ended.prompt_ids(0), ended.prompt_ids(1)]
    next_state = (
        *states[1],
        *ended.turns[1].action_ids,
        *renderer.bridge([Message("user", "so far")], ended.turns[1].action_ids),
    )
    v0, v1, v2 = (value_of(learner.critic, ids) for ids in (*states, next_state))
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
    # the target of a padding transition is its own value
    assert all(t.info["returns"] == t.info["values"] for t in buffer[4:])


def test_critic_bootstraps_from_the_prompt_that_the_template_writes(
    make_learner: Callable[..., Any],
) -> None:
    """The template removes the thinking of earlier turns; long states end at the context."""
    learner = make_learner(GemConfig(ECHO, seeds=8, advantage="gae"))
    tokenizer = copy.deepcopy(learner.tokenizer)
    tokenizer.chat_template = STRIPPING
    renderer = Renderer(tokenizer, mode="template")
    start = [Message("user", "hello")]
    ids = (*tokenizer.encode("<think>1</think>2", add_special_tokens=False), renderer.turn_end)
    turn = Turn(
        tuple(start), "<think>1</think>2", 0.5, renderer.start(start), True, ids, (-1.0,) * len(ids)
    )
    cut = Episode(ECHO, 0, (turn,), StopReason.TURN_LIMIT, final_observation="so far")
    next_prompt = renderer.start(
        [*start, Message("assistant", turn.action), Message("user", "so far")]
    )
    assert "think" not in tokenizer.decode(next_prompt)
    for max_ids in (None, 9):
        learner.pi_buffer.clear()
        batch = to_batch([cut], 16, renderer, with_critic=True, max_ids=max_ids)
        buffer = update(learner, batch, {})
        v0, v1 = (value_of(learner.critic, ids) for ids in (turn.added_ids, next_prompt[:max_ids]))
        assert buffer[0].info["advantages"] == pytest.approx(0.5 + v1 - v0, abs=1e-6)


def test_critic_is_read_at_the_last_token(make_learner: Callable[..., Any]) -> None:
    """At the first token, where oat 0.2.4 reads it, a causal critic cannot see the state."""
    learner = make_learner(GemConfig(ECHO, seeds=8, advantage="gae"))
    states = [torch.tensor([[1, 20, 30, 40]]), torch.tensor([[1, 50, 60]])]
    raw = [learner.critic.module(input_ids=s, attention_mask=torch.ones_like(s)) for s in states]
    assert raw[0][0, 0].item() == pytest.approx(raw[1][0, 0].item(), abs=1e-6)
    values = [value_of(learner.critic, s[0].tolist()) for s in states]
    assert values == pytest.approx([raw[0][0, -1].item(), raw[1][0, -1].item()], abs=1e-6)
    assert abs(values[0] - values[1]) > 1e-4


@ON_A_CPU
@pytest.mark.parametrize("estimator", ["rebn", "gae"])
def test_learner_trains_a_batch_with_padding(
    make_actor: Callable[..., GemActor], make_learner: Callable[..., Any], estimator: str
) -> None:
    """Losses and gradient are finite, and sampler and learner compute the same logprobs."""
    config = GemConfig(ECHO, seeds=64, advantage=estimator, max_turn_tokens=8, concurrency=6)
    actor, learner = make_actor(config), make_learner(config)
    batch, info = actor.collect_experience()
    update(learner, batch, info)
    learner.gradient_update_st = 0.0
    metrics = learner.learn(2)
    assert metrics["train/policy_grad_norm"] > 0
    assert abs(metrics["train/logprobs_diff_max"]) < 1e-4
    assert abs(metrics["train/kl_sample_train_v1"]) < 1e-4
    if estimator == "gae":
        assert 0 <= metrics["train/critic_loss"] < 10


@ON_A_CPU
@pytest.mark.parametrize("estimator", ["rebn", "gae"])
def test_padding_and_masked_turns_do_not_change_the_losses(
    make_learner: Callable[..., Any], estimator: str
) -> None:
    """oat divides by all transitions; with more padding, the same turns give the same gradients."""
    learner = make_learner(GemConfig(ECHO, seeds=64, advantage=estimator, gamma=0.9))
    renderer, losses = Renderer(learner.tokenizer), []
    episode = two_turns(renderer, StopReason.TERMINATED)
    other = replace(episode, turns=(replace(episode.turns[0], reward=1.0), episode.turns[1]))
    masked = replace(
        episode, turns=tuple(replace(t, status=TurnStatus.MASKED) for t in episode.turns)
    )
    # 4 of 16 transitions, all of them, and 4 with 4 masked ones
    for episodes in ([episode, other], [episode, other] * 4, [episode, other, masked, masked]):
        learner.pi_buffer.clear()
        update(learner, to_batch(episodes, 16, renderer, with_critic=estimator == "gae"), {})
        learner.gradient_update_st = 0.0
        metrics = learner.learn(2)
        names = ("train/policy_grad_norm", "train/pg_loss", "train/critic_loss")
        losses.append([float(metrics.get(name, 0.0)) for name in names])
    assert losses[0][0] > 0 and (losses[0][2] > 0) is (estimator == "gae")
    assert losses[1] == pytest.approx(losses[0], rel=1e-4, abs=1e-6)
    assert losses[2] == pytest.approx(losses[0], rel=1e-4, abs=1e-6)


@ON_A_CPU
@pytest.mark.parametrize("estimator", ["rebn", "gae"])
def test_losses_in_the_metrics_are_means_over_the_batch(
    make_learner: Callable[..., Any], estimator: str
) -> None:
    """oat itself keeps the losses of the last transition, in a random order."""
    learner = make_learner(GemConfig(ECHO, seeds=64, advantage=estimator, gamma=0.9))
    renderer = Renderer(learner.tokenizer)
    episode = two_turns(renderer, StopReason.TERMINATED)
    other = replace(episode, turns=(replace(episode.turns[0], reward=1.0), episode.turns[1]))
    update(learner, to_batch([episode, other], 16, renderer, with_critic=estimator == "gae"), {})
    trained: dict[bool, list[float]] = {False: [], True: []}

    def backward(loss: Any, model: Any, optimizer: Any, **kwargs: Any) -> None:
        trained[model is learner.critic].append(float(loss))
        original(loss, model, optimizer, **kwargs)

    learner.gradient_update_st = 0.0
    with patched(learner.strategy, "backward", backward) as original:
        metrics = learner.learn(2)
    assert len(trained[False]) == 16 and len(set(trained[False])) > 2
    assert float(metrics["train/pg_loss"]) == pytest.approx(sum(trained[False]) / 16, abs=1e-6)
    if estimator == "gae":
        mean = sum(trained[True]) / 16
        assert float(metrics["train/critic_loss"]) == pytest.approx(mean, rel=1e-5) and mean > 0


@pytest.mark.setting("`batch_end`", "works")
def test_plugins_get_the_whole_batch_once(
    make_actor: Callable[..., GemActor],
    make_learner: Callable[..., Any],
    batch_ends: list[list[Episode]],
) -> None:
    config = GemConfig(ECHO, seeds=64, max_turn_tokens=8)
    buffer = update(make_learner(config), *make_actor(config).collect_experience())
    (episodes,) = batch_ends
    assert {e.index for e in episodes} == {t.episode.index for t in buffer if t.episode is not None}


@ON_A_CPU
@pytest.mark.setting("Importance correction", "works")
def test_update_raises_the_logprobs_that_the_advantages_favour(
    make_actor: Callable[..., GemActor], make_learner: Callable[..., Any]
) -> None:
    """One step of oat's optimizer raises its objective: the sum of advantage times logprob."""
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
def test_check_batch_rejects_changed_ids_or_mask(
    make_actor: Callable[..., GemActor],
    make_learner: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[dict[str, Any]], None],
    estimator: str,
) -> None:
    class ChangedDataset(GemDataset):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            change(self.transitions[0])

    config = GemConfig(ECHO, seeds=64, advantage=estimator, max_turn_tokens=8)
    learner = make_learner(config)
    update(learner, *make_actor(config).collect_experience())
    monkeypatch.setattr(learner, "dataset_builder", ChangedDataset)
    with pytest.raises(BatchMismatchError, match="transition 0 of oat's batch"):
        learner.learn(2)


def test_batch_without_all_transitions_is_rejected(
    make_actor: Callable[..., GemActor], make_learner: Callable[..., Any]
) -> None:
    config = GemConfig(ECHO, seeds=64, max_turn_tokens=8)
    learner = make_learner(config)
    buffer = update(learner, *make_actor(config).collect_experience())
    dataset = GemDataset(buffer, learner.tokenizer, learner.strategy)
    with pytest.raises(BatchMismatchError, match="has 15 transitions"):
        learner.learning_step(dataset.collate_fn([dataset[i] for i in range(15)]))


@ON_A_CPU
def test_trained_padding_transition_is_rejected(
    make_learner: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = make_learner(GemConfig(ECHO, seeds=64))
    buffer = update(learner, to_batch([], 16, Renderer(learner.tokenizer), with_critic=False), {})
    buffer[3].loss_mask = True
    with pytest.raises(BatchMismatchError, match="transition 3"):
        learner.learn(2)
