"""Episodes as OpenRLHF's engines play them: limits, masks, logprobs, groups, and what breaks on the way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ECHO, MOODY, Echo, Engine
from openrlhf.trainer.ppo_trainer import compute_eval_metrics
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from vllm import SamplingParams

from gem_core import register
from gem_core.env.registry import environments
from gem_core.errors import ConfigError
from gem_core.records.file import read_episodes
from gem_core.training.sequences import token_views
from gem_core.types import FinishReason, StopReason
from gem_openrlhf import GemSpec
from gem_openrlhf.agent import AgentExecutor

Play = Callable[..., list[dict[str, Any]]]


def experience_of(response: dict[str, Any], max_len: int = 512) -> Any:
    """What the real samples generator makes of it."""
    return SamplesGenerator.__new__(SamplesGenerator)._process_response_into_experience(response, max_len=max_len)


def test_what_is_trained_is_what_was_sampled(play: Play, engine: Engine) -> None:
    responses = play(GemSpec(ECHO, max_turn_tokens=6), seeds=list(range(6)))
    assert {len(r["label"].episode.turns) for r in responses} == {1, 2, 3}
    for response in responses:
        (view,) = token_views(response["label"].episode)
        experience = experience_of(response)
        assert experience.sequences[0].tolist() == list(view.ids)
        assert [0, *experience.action_mask[0].tolist()] == list(view.mask)
        assert [0.0, *experience.rollout_log_probs[0].tolist()] == pytest.approx(list(view.logprobs or ()))
        assert response["reward"] == pytest.approx(sum(response["label"].episode.rewards))
        sampled = [i for i, m in zip(view.ids, view.mask) if m]
        assert sampled == [i for turn in response["label"].episode.turns for i in turn.action_ids]


def test_a_group_plays_one_start(play: Play) -> None:
    responses = play(GemSpec(ECHO, max_turn_tokens=6), seeds=[4, 5], samples=3)
    groups = [{r["label"].episode.group for r in responses[i : i + 3]} for i in (0, 3)]
    assert [len(g) for g in groups] == [1, 1] and groups[0] != groups[1]


def test_one_sampling_object_serves_a_group_and_is_not_changed(play: Play, engine: Engine) -> None:
    shared = SamplingParams(max_tokens=9, min_tokens=1, logprobs=None, temperature=0.7)
    before = repr(shared)
    responses = play(GemSpec(ECHO), seeds=[2], samples=4, params=shared)
    assert repr(shared) == before
    assert all(r["rollout_log_probs"] is None for r in responses)
    assert {p.max_tokens for _, p in engine.asked} == {9}, "OpenRLHF's --rollout.max_new_tokens caps each turn"
    assert {p.min_tokens for _, p in engine.asked} == {0}
    assert all(engine.tokenizer.eos_token_id in p.stop_token_ids for _, p in engine.asked)
    assert {t.sampling.temperature for r in responses for t in r["label"].episode.turns} == {0.7}


def test_the_cap_per_turn_is_the_specs(play: Play, engine: Engine) -> None:
    play(GemSpec(ECHO, max_turn_tokens=5), seeds=[0, 1, 2])
    assert {p.max_tokens for _, p in engine.asked} == {5}


def test_a_full_context_ends_the_episode_and_is_told(play: Play) -> None:
    whole = play(GemSpec(ECHO, max_turn_tokens=6), seeds=[2])[0]
    assert len(whole["action_ranges"]) == 3
    length = whole["action_ranges"][1][0] - 1  # no room for a second turn
    (cut,) = play(GemSpec(ECHO, max_turn_tokens=6), seeds=[2], max_length=length)
    assert cut["label"].episode.stop is StopReason.CONTEXT_FULL and cut["truncated"]
    assert len(cut["observation_tokens"]) <= length
    assert int(experience_of(cut, length).action_mask.sum()) == len(cut["label"].episode.turns[0].action_ids)


def test_a_generation_that_hit_its_cap_is_told(play: Play) -> None:
    (response,) = play(GemSpec(ECHO, max_turn_tokens=1), seeds=[0])
    assert response["label"].episode.turns[-1].finish is FinishReason.LENGTH
    assert response["truncated"] is True
    (response,) = play(GemSpec("game:GuessTheNumber-v0-easy", max_turn_tokens=24), seeds=[0])
    assert response["label"].episode.turns[-1].finish is FinishReason.STOP
    assert response["truncated"] is False


def test_a_cut_turn_can_be_left_out(play: Play) -> None:
    (response,) = play(GemSpec(ECHO, max_turn_tokens=1, on_cut="mask"), seeds=[1])
    assert len(response["label"].episode.turns) == 2
    assert response["action_ranges"] == []


def test_a_failed_episode_is_a_row_with_nothing_to_train(play: Play) -> None:
    bad, good = play(GemSpec(MOODY, max_turn_tokens=6), seeds=[1, 2])
    assert bad["label"].episode.stop is StopReason.ENV_ERROR
    assert bad["action_ranges"] == [] and bad["reward"] == 0.0
    assert len(bad["observation_tokens"]) == len(bad["rollout_log_probs"]) > 1
    assert int(experience_of(bad).action_mask.sum()) == 0
    assert len(good["action_ranges"]) == 2


def test_the_horizon_follows_the_engines_step(play: Play, engine: Engine) -> None:
    spec = GemSpec(ECHO, max_turn_tokens=6, horizon="1,2,3@1")
    turns = []
    for engine.gem_step in range(4):
        episode = play(spec, seeds=[2])[0]["label"].episode
        turns.append(len(episode.turns))
        assert {t.versions for t in episode.turns} == {(engine.gem_step, engine.gem_step)}
    assert turns == [1, 2, 3, 3]


def test_wrappers_and_tools_come_with_the_label(play: Play) -> None:
    spec = GemSpec("game:GuessTheNumber-v0-easy", wrappers="turn_limit(max_turns=1)", tools="python", max_turn_tokens=8)
    (response,) = play(spec, seeds=[3])
    episode = response["label"].episode
    assert "turn_limit" in episode.wrappers and "python" in episode.wrappers
    assert episode.stop is StopReason.TRUNCATED or episode.stop is StopReason.TERMINATED


def test_a_slow_environment_holds_up_nobody(play: Play) -> None:
    class Slow(Echo):
        def on_step(self, action: str) -> Any:
            time.sleep(0.3)
            return super().on_step(action)

    register("test:Slow-v0", Slow)
    try:
        began = time.monotonic()
        play(GemSpec("test:Slow-v0", max_turn_tokens=2), seeds=[0, 3, 6, 9, 12, 15, 18, 21])
        assert time.monotonic() - began < 1.5, "eight steps of 0.3 s each"
    finally:
        environments.remove("test:Slow-v0")


def test_episodes_are_recorded(play: Play, tmp_path: Path) -> None:
    responses = play(GemSpec(ECHO, max_turn_tokens=6, record=str(tmp_path / "{rank}.jsonl")), seeds=[0, 1, 2])
    (path,) = tmp_path.iterdir()
    assert sorted(e.seed for e in read_episodes(path)) == [0, 1, 2]
    played = {r["label"].episode.seed: r["label"].episode for r in responses}
    assert all(e.turns == played[e.seed].turns for e in read_episodes(path))


def test_openrlhf_evaluates_what_was_played(play: Play) -> None:
    responses = play(GemSpec(ECHO, max_turn_tokens=6, eval_seeds=2), seeds=[1_000_000, 1_000_001], samples=2)
    starts = [(["default"], [f"start {seed}"], [None], [None]) for seed in (1_000_000, 1_000_001)]
    found = compute_eval_metrics(starts, [experience_of(r) for r in responses], 2)
    assert found["eval_default_pass1"] == pytest.approx(sum(r["reward"] for r in responses) / 4)


def test_a_broken_engine_ends_the_run(play: Play, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole batch of failed episodes, step after step, would look like training."""

    async def out_of_memory(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(engine, "generate", out_of_memory)
    with pytest.raises(RuntimeError, match="out of memory"):
        play(GemSpec(ECHO), seeds=[0])


def test_an_engine_that_failed_once_is_tried_again(play: Play, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    generate, calls = engine.generate, []

    async def hiccup(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            raise RuntimeError("a hiccup")
        return await generate(*args, **kwargs)

    monkeypatch.setattr(engine, "generate", hiccup)
    (response,) = play(GemSpec(ECHO, max_turn_tokens=4, retries=1), seeds=[0])
    assert not response["label"].episode.failed
    assert len(calls) > 1


def test_logprobs_that_are_missing_end_the_run(play: Play, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = engine.generate

    async def without(*args: Any, **kwargs: Any) -> Any:
        found = await generate(*args, **kwargs)
        found.outputs[0].logprobs = None
        return found

    monkeypatch.setattr(engine, "generate", without)
    with pytest.raises(RuntimeError, match="gave 0 for"):
        play(GemSpec(ECHO, max_turn_tokens=4), seeds=[0])


@pytest.mark.parametrize("label", ["", None, "42", '{"seed": 1}', '{"seed": "x", "gem": {}}'])
def test_a_label_without_a_task_is_refused(label: Any, engine: Engine) -> None:
    call = AgentExecutor().execute("hi", label, SamplingParams(), 64, engine.tokenizer, engine)
    with pytest.raises(ConfigError, match="carries no gem task"):
        asyncio.run(call)
