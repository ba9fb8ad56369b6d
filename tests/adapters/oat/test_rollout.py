"""Collecting with the real actor: what it hands over is what was played, in batches of an exact size, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from gem_core.errors import ConfigError
from gem_core.records.file import read_episodes
from gem_core.types import FinishReason, Generation
from gem_oat import GemActor, GemSpec
from gem_oat.rollout import SUMS, tasks_of

ECHO, MOODY = "test:Echo-v0", "test:Moody-v0"
Batch = list[list[Any]]


def played(batch: Batch) -> Batch:
    """What stands for a turn, fillers left out."""
    return [transitions for transitions in batch if transitions[0].episode is not None]


def test_what_is_handed_over_is_what_was_played(make_actor: Callable[..., GemActor], tmp_path: Path) -> None:
    spec = GemSpec(ECHO, seeds=64, max_turn_tokens=6, concurrency=5, record=str(tmp_path / "e{rank}.jsonl"))
    actor = make_actor(spec)
    asked: list[tuple[list[int], Any]] = []
    inner = actor.llm.generate

    def generate(**given: Any) -> Any:
        found = inner(**given)
        asked.extend((prompt, out.outputs[0]) for prompt, out in zip(given["prompt_token_ids"], found))
        return found

    actor.llm.generate = generate
    batches = [actor.collect_experience()[0] for _ in range(3)]
    recorded = {e.index: e for e in read_episodes(tmp_path / "e0.jsonl")}
    answers = {tuple(prompt): answer for prompt, answer in asked}
    for transitions in (t for batch in batches for t in played(batch)):
        episode = recorded[transitions[0].episode.index]
        assert len(transitions) == len(episode.turns)
        assert [t.done for t in transitions] == [False] * (len(transitions) - 1) + [True]
        assert [t.rewards for t in transitions] == list(episode.rewards)
        for number, transition in enumerate(transitions):
            answer = answers[tuple(transition.prompt_ids)]
            assert transition.prompt_ids == list(episode.prompt_ids(number))
            assert transition.response_ids == list(answer.token_ids)
            assert transition.response_logprobs == [p[i].logprob for i, p in zip(answer.token_ids, answer.logprobs)]
            assert transition.loss_mask and len(transition.response_ids) <= 6


def test_batches_have_an_exact_size_and_unfinished_episodes_go_on(make_actor: Callable[..., GemActor]) -> None:
    actor = make_actor(GemSpec(ECHO, seeds=1000, max_turn_tokens=4, concurrency=20))
    batches = [actor.collect_experience() for _ in range(5)]
    assert [sum(map(len, batch)) for batch, _ in batches] == [16] * 5
    episodes = [transitions[0].episode for batch, _ in batches for transitions in played(batch)]
    assert len({e.index for e in episodes}) == len(episodes)
    # some were in play when a batch was full: their later turns were sampled from newer weights
    carried = [e for e in episodes if len({turn.versions for turn in e.turns}) > 1]
    assert carried
    assert all(sorted(t.versions for t in e.turns) == [t.versions for t in e.turns] for e in carried)
    assert sum(info[f"{SUMS}older"] for _, info in batches) > 0


def test_no_length_is_favoured(make_actor: Callable[..., GemActor]) -> None:
    """Every start is trained on once in a round, however long its episode is, and none is thrown away."""
    actor = make_actor(GemSpec(ECHO, seeds=30, max_turn_tokens=4, concurrency=12))
    lengths: dict[int, int] = {}
    for _ in range(12):
        lengths |= {t[0].episode.index: len(t) for t in played(actor.collect_experience()[0])}
    assert sorted(lengths[i] for i in range(30)) == sorted(1 + seed % 3 for seed in range(30))


def test_a_group_enters_a_batch_together(make_actor: Callable[..., GemActor]) -> None:
    actor = make_actor(GemSpec(ECHO, seeds=64, samples=3, advantage="grpo", max_turn_tokens=4, concurrency=7))
    for _ in range(4):
        episodes = [t[0].episode for t in played(actor.collect_experience()[0])]
        groups = [episodes[i : i + 3] for i in range(0, len(episodes), 3)]
        assert all(len({e.group for e in group}) == 1 and len(group) == 3 for group in groups)
        assert len({e.group for e in episodes}) == len(groups)


def test_a_failed_episode_becomes_one_filler(make_actor: Callable[..., GemActor]) -> None:
    actor = make_actor(GemSpec(MOODY, seeds=64, max_turn_tokens=4, concurrency=4))
    batch, info = actor.collect_experience()
    fillers = [t for transitions in batch for t in transitions if t.episode is None]
    assert info[f"{SUMS}failed"] >= 1
    assert len(fillers) == info[f"{SUMS}fillers"] >= info[f"{SUMS}failed"]
    assert not any(t.loss_mask or t.rewards for t in fillers)
    assert sum(map(len, batch)) == 16


def test_an_environment_that_always_breaks_does_not_hang(make_actor: Callable[..., GemActor]) -> None:
    actor = make_actor(GemSpec(MOODY, seeds=[1, 3, 5], max_turn_tokens=4, concurrency=4))
    batch, info = actor.collect_experience()
    assert played(batch) == []
    assert info[f"{SUMS}failed"] == info[f"{SUMS}episodes"] == 16


def test_a_group_that_fits_into_no_batch_is_an_error(make_actor: Callable[..., GemActor]) -> None:
    actor = make_actor(GemSpec(ECHO, seeds=[2], samples=6, max_turn_tokens=4))  # 18 turns
    with pytest.raises(ConfigError, match="raise rollout_batch_size_per_device"):
        actor.collect_experience()


def test_a_turn_in_which_nothing_was_sampled_is_masked(make_actor: Callable[..., GemActor]) -> None:
    actor = make_actor(GemSpec(ECHO, seeds=[2], max_turn_tokens=4, concurrency=1))
    inner = actor.generate_turns
    silent = iter([False, True] + [False] * 1000)
    actor.play._generate = lambda p, s: [Generation((), (), FinishReason.EMPTY)] if next(silent) else inner(p, s)
    transitions = played(actor.collect_experience()[0])[0]
    assert [t.loss_mask for t in transitions] == [True, False, True]
    assert (transitions[1].response_ids, transitions[1].response_logprobs) == ([actor.renderer.turn_end], [0.0])


def test_the_horizon_grows_with_the_update(make_actor: Callable[..., GemActor]) -> None:
    actor = make_actor(GemSpec(ECHO, seeds=[2, 5, 8], max_turn_tokens=2, concurrency=2, horizon="1,2,3@2"))
    longest = [max(map(len, played(actor.collect_experience()[0]))) for _ in range(6)]
    assert (longest[0], longest[3], longest[5]) == (1, 2, 3)


def test_a_broken_engine_ends_the_run(make_actor: Callable[..., GemActor]) -> None:
    actor = make_actor(GemSpec(ECHO, seeds=8, max_turn_tokens=4))

    def out_of_memory(**_: Any) -> Any:
        raise RuntimeError("CUDA out of memory")

    actor.llm.generate = out_of_memory
    with pytest.raises(RuntimeError, match="out of memory"):
        actor.collect_experience()
    with pytest.raises(RuntimeError, match="out of memory"):
        actor.play_held_out([1, 2])


def test_evaluation_plays_starts_of_its_own_while_training_stands_still(make_actor: Callable[..., GemActor]) -> None:
    spec = GemSpec(ECHO, seeds=64, eval_seeds=5, max_turn_tokens=4, concurrency=4)
    actor = make_actor(spec)
    actor.collect_experience()
    sums = actor.play_held_out(spec.held_out_seeds)
    assert sums["episodes"] == sums["finished"] == 5
    assert actor.play_held_out([])["episodes"] == 0
    assert sum(map(len, actor.collect_experience()[0])) == 16


def test_actors_share_the_starts_among_them() -> None:
    spec = GemSpec(ECHO, seeds=10, samples=2)
    shares = [[t.seed for t in islice(tasks_of(spec, 7, actor, 3), 2 * len(range(actor, 10, 3)))] for actor in range(3)]
    assert sorted(seed for share in shares for seed in share) == sorted(2 * list(range(10)))
    orders = [tuple(t.seed for t in islice(tasks_of(spec, seed, 0, 1), 20)) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    rounds = [t.seed for t in islice(tasks_of(spec, 7, 0, 1), 40)]
    assert rounds[:20] != rounds[20:]
