"""oat's real actor: its batches hold the played turns, have an exact size, and drop no episode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from worlds import ECHO, MOODY

from gem_core.errors import ConfigError, EngineError
from gem_core.records.file import read_episodes
from gem_core.types import StopReason
from gem_oat import GemActor, GemConfig
from gem_oat.rollout import FinishedGroups
from gem_oat.worker import WORKER

Batch = list[list[Any]]


def played(batch: Batch) -> Batch:
    """Return the transitions of each episode, without padding transitions."""
    return [transitions for transitions in batch if not transitions[0].padding]


def padding(batch: Batch) -> list[Any]:
    return [t for transitions in batch for t in transitions if t.padding]


def test_transitions_have_the_sampled_tokens_and_logprobs(
    make_actor: Callable[..., GemActor], tmp_path: Path
) -> None:
    config = GemConfig(
        ECHO, seeds=64, max_turn_tokens=6, concurrency=5, record=str(tmp_path / "e{rank}.jsonl")
    )
    actor = make_actor(replace(config, engine_kwargs={"enforce_eager": True}))
    assert actor.llm.more["enforce_eager"]
    completions: dict[tuple[int, ...], Any] = {}
    assert actor.llm.worker_extension_cls == WORKER
    inner = actor.llm.generate

    def generate(prompts: Any, **kwargs: Any) -> Any:
        requests = inner(prompts, **kwargs)
        for prompt, request in zip(prompts, requests):
            completions[tuple(prompt["prompt_token_ids"])] = request.outputs[0]
        return requests

    actor.llm.generate = generate
    batches = [actor.collect_experience()[0] for _ in range(3)]
    actor.finish()
    recorded = {e.index: e for e in read_episodes(tmp_path / "e0.jsonl")}
    for transitions in (t for batch in batches for t in played(batch)):
        episode = recorded[transitions[0].episode.index]
        assert len(transitions) == len(episode.turns)
        assert [t.done for t in transitions] == [False] * (len(transitions) - 1) + [True]
        assert [t.rewards for t in transitions] == list(episode.rewards)
        for number, transition in enumerate(transitions):
            completion = completions[tuple(transition.prompt_ids)]
            assert transition.prompt_ids == list(episode.prompt_ids(number))
            assert transition.response_ids == list(completion.token_ids)
            assert transition.response_logprobs == [
                p[i].logprob for i, p in zip(completion.token_ids, completion.logprobs)
            ]
            assert transition.loss_mask and len(transition.response_ids) <= 6


def test_batches_have_an_exact_size_and_unfinished_episodes_continue(
    make_actor: Callable[..., GemActor],
) -> None:
    actor = make_actor(GemConfig(ECHO, seeds=1000, max_turn_tokens=4, concurrency=20))
    batches = [actor.collect_experience() for _ in range(5)]
    assert [sum(map(len, batch)) for batch, _ in batches] == [16] * 5
    episodes = [transitions[0].episode for batch, _ in batches for transitions in played(batch)]
    assert len({e.index for e in episodes}) == len(episodes)
    # some were unfinished when a batch was full: their later turns come from newer weights
    carried = [e for e in episodes if len({turn.versions for turn in e.turns}) > 1]
    assert carried
    assert all(
        sorted(t.versions for t in e.turns) == [t.versions for t in e.turns] for e in carried
    )


def test_episodes_are_trained_whatever_their_length(make_actor: Callable[..., GemActor]) -> None:
    """Every seed is trained once per epoch, and no episode is dropped."""
    actor = make_actor(GemConfig(ECHO, seeds=30, max_turn_tokens=4, concurrency=12))
    lengths: dict[int, int] = {}
    for _ in range(12):
        lengths |= {t[0].episode.index: len(t) for t in played(actor.collect_experience()[0])}
    assert sorted(lengths[i] for i in range(30)) == sorted(1 + seed % 3 for seed in range(30))


def test_groups_enter_a_batch_as_a_whole(make_actor: Callable[..., GemActor]) -> None:
    actor = make_actor(
        GemConfig(ECHO, seeds=64, samples=3, advantage="grpo", max_turn_tokens=4, concurrency=7)
    )
    for _ in range(4):
        episodes = [t[0].episode for t in played(actor.collect_experience()[0])]
        groups = [episodes[i : i + 3] for i in range(0, len(episodes), 3)]
        assert all(len({e.group for e in group}) == 1 and len(group) == 3 for group in groups)
        assert len({e.group for e in episodes}) == len(groups)


def test_failed_episode_becomes_one_padding_transition(make_actor: Callable[..., GemActor]) -> None:
    actor = make_actor(GemConfig(MOODY, seeds=64, max_turn_tokens=4, concurrency=4))
    batch, _ = actor.collect_experience()
    failed = [t for t in padding(batch) if t.episode is not None]
    assert failed and all(t.episode.failed for t in failed)
    assert not any(t.loss_mask or t.rewards for t in padding(batch))
    assert sum(map(len, batch)) == 16


def test_batch_of_failed_episodes_is_all_padding(make_actor: Callable[..., GemActor]) -> None:
    actor = make_actor(GemConfig(MOODY, seeds=[1, 3, 5], max_turn_tokens=4, concurrency=4))
    batch, info = actor.collect_experience()
    assert played(batch) == []
    assert [t.episode.failed for t in padding(batch)] == [True] * 16
    assert info == {}


def test_oat_statistics_exclude_padding(make_actor: Callable[..., GemActor]) -> None:
    config = GemConfig(MOODY, seeds=64, max_turn_tokens=4, concurrency=4)
    batch, info = make_actor(config).collect_experience()
    turns = [t for transitions in played(batch) for t in transitions]
    assert info["actor/num_transitions"] == len(turns) < 16
    assert info["actor/avg_reward"] == pytest.approx(sum(t.rewards for t in turns) / len(turns))
    assert info["actor/mean_episode_len"] == 2.0


def test_episode_ends_when_its_group_would_not_fit_into_a_batch(
    make_actor: Callable[..., GemActor],
) -> None:
    actor = make_actor(GemConfig(ECHO, seeds=[2], samples=6, max_turn_tokens=4))  # 18 turns
    episodes = [transitions[0].episode for transitions in played(actor.collect_experience()[0])]
    assert [(len(e.turns), e.stop) for e in episodes] == [(2, StopReason.TURN_LIMIT)] * 6


def test_group_larger_than_a_batch_is_rejected(make_actor: Callable[..., GemActor]) -> None:
    actor = make_actor(GemConfig(ECHO, seeds=[2], max_turn_tokens=4))
    (episode, *_) = (t[0].episode for t in played(actor.collect_experience()[0]))
    groups = FinishedGroups(1)
    groups.add(episode)
    with pytest.raises(ConfigError, match="raise rollout_batch_size_per_device"):
        groups.take(2)


def test_turn_without_sampled_tokens_is_masked(make_actor: Callable[..., GemActor]) -> None:
    actor = make_actor(GemConfig(ECHO, seeds=[2], max_turn_tokens=4, concurrency=1))
    inner, calls = actor.llm.generate, []

    def empty_second_turn(*args: Any, **kwargs: Any) -> Any:
        requests = inner(*args, **kwargs)
        calls.append(requests)
        if len(calls) == 2:
            requests[0].outputs[0].token_ids = requests[0].outputs[0].logprobs = ()
        return requests

    actor.llm.generate = empty_second_turn
    transitions = played(actor.collect_experience()[0])[0]
    assert [t.loss_mask for t in transitions] == [True, False, True]
    assert transitions[1].response_ids == [actor.renderer.turn_end]
    assert transitions[1].response_logprobs == [0.0]


@pytest.mark.setting("Growing horizon", "works")
def test_horizon_grows_with_the_update(make_actor: Callable[..., GemActor]) -> None:
    actor = make_actor(
        GemConfig(ECHO, seeds=[2, 5, 8], max_turn_tokens=2, concurrency=2, horizon="1,2,3@2")
    )
    longest = [max(map(len, played(actor.collect_experience()[0]))) for _ in range(6)]
    assert (longest[0], longest[3], longest[5]) == (1, 2, 3)


def test_engine_failure_ends_the_run(make_actor: Callable[..., GemActor]) -> None:
    actor = make_actor(GemConfig(ECHO, seeds=8, max_turn_tokens=4))

    def out_of_memory(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("CUDA out of memory")

    actor.llm.generate = out_of_memory
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of memory"):
            actor.collect_experience()
    with pytest.raises(RuntimeError, match="out of memory"):
        actor.play_held_out([1, 2])


def test_missing_logprobs_end_the_run(make_actor: Callable[..., GemActor]) -> None:
    actor = make_actor(GemConfig(ECHO, seeds=8, max_turn_tokens=4))
    inner = actor.llm.generate

    def without_logprobs(*args: Any, **kwargs: Any) -> Any:
        requests = inner(*args, **kwargs)
        for request in requests:
            request.outputs[0].logprobs = None
        return requests

    actor.llm.generate = without_logprobs
    with pytest.raises(EngineError, match="no logprob for one of"):
        actor.collect_experience()


@pytest.mark.setting("Evaluation", "works")
def test_evaluation_plays_the_held_out_seeds_between_batches(
    make_actor: Callable[..., GemActor],
) -> None:
    config = GemConfig(ECHO, seeds=64, eval_seeds=5, max_turn_tokens=4, concurrency=4)
    actor = make_actor(config)
    actor.collect_experience()
    sums = actor.play_held_out(config.held_out_seeds)
    assert sums.episodes == sums.finished == 5
    assert actor.play_held_out([]).episodes == 0
    assert sum(map(len, actor.collect_experience()[0])) == 16


def test_evaluation_has_the_turn_cap_but_not_the_room_of_a_batch(
    make_actor: Callable[..., GemActor], tmp_path: Path
) -> None:
    """A training episode of this group ends after two turns, to fit into a batch."""
    config = GemConfig(
        ECHO, seeds=[2], samples=6, eval_seeds=[5], max_turn_tokens=3,
        record=str(tmp_path / "e{rank}.jsonl"),
    )  # fmt: skip
    actor = make_actor(config, eval_temperature=1.0)
    generate, caps = actor.llm.generate, []

    def keep_cap(prompts: Any, sampling_params: Any, **kwargs: Any) -> Any:
        caps.append(sampling_params.max_tokens)
        return generate(prompts, sampling_params=sampling_params, **kwargs)

    actor.llm.generate = keep_cap
    actor.play_held_out(config.held_out_seeds)
    (episode,) = read_episodes(tmp_path / "e0.jsonl")
    assert (len(episode.turns), episode.stop) == (3, StopReason.TERMINATED)
    assert set(caps) == {3}
