"""Episodes on OpenRLHF's engines: limits, loss masks, logprobs, groups and failures."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray
from located import wait_for_exit
from openrlhf.trainer.ppo_trainer import compute_eval_metrics
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from vllm import SamplingParams
from vllm_mock import Engine
from worlds import ECHO, MOODY, Echo

from gem_core import register
from gem_core.env.registry import environments
from gem_core.errors import ConfigError, EngineError
from gem_core.records.file import read_episodes
from gem_core.training.advantage import advantages
from gem_core.training.sequences import token_sequences
from gem_core.types import FinishReason, StopReason
from gem_openrlhf import GemConfig
from gem_openrlhf.agent import AgentExecutor
from gem_openrlhf.records import find_recorder, recording
from gem_openrlhf.rollout import SharedTokenizer
from gem_openrlhf.samples import GemSamplesGenerator
from gem_openrlhf.trainer import put_advantages

Play = Callable[..., list[dict[str, Any]]]


def experience_of(response: dict[str, Any], max_len: int = 512) -> Any:
    """Return the experience that the real samples generator makes of a response."""
    generator = SamplesGenerator.__new__(SamplesGenerator)
    return generator._process_response_into_experience(response, max_len=max_len)


def test_exactly_the_sampled_tokens_are_trained(play: Play, engine: Engine) -> None:
    responses = play(GemConfig(ECHO, max_turn_tokens=6), seeds=list(range(6)))
    assert {len(r["label"].episode.turns) for r in responses} == {1, 2, 3}
    for response in responses:
        (sequence,) = token_sequences(response["label"].episode)
        experience = experience_of(response)
        assert experience.sequences[0].tolist() == list(sequence.ids)
        assert [0, *experience.action_mask[0].tolist()] == list(sequence.mask)
        assert [0.0, *experience.rollout_log_probs[0].tolist()] == pytest.approx(
            list(sequence.logprobs or ())
        )
        assert response["reward"] == pytest.approx(sum(response["label"].episode.rewards))
        sampled = [i for i, m in zip(sequence.ids, sequence.mask) if m]
        assert sampled == [i for turn in response["label"].episode.turns for i in turn.action_ids]


def test_shared_tokenizer_is_loaded_once_per_executor(ray_here: None, engine: Engine) -> None:
    """OpenRLHF pickles its tokenizer into the call of every prompt."""
    generator = SamplesGenerator.__new__(SamplesGenerator)
    generator.tokenizer = engine.tokenizer
    GemSamplesGenerator.replace(generator)
    shared = generator.tokenizer
    assert isinstance(shared, SharedTokenizer)
    executor = AgentExecutor()

    async def load() -> list[Any]:
        return [await executor._tokenizer(shared) for _ in range(2)]

    first, second = asyncio.run(load())
    assert first is second
    assert first.get_vocab() == engine.tokenizer.get_vocab()


def test_episodes_of_one_seed_share_a_group(play: Play) -> None:
    responses = play(GemConfig(ECHO, max_turn_tokens=6), seeds=[4, 5], samples=3)
    groups = [{r["label"].episode.group for r in responses[i : i + 3]} for i in (0, 3)]
    assert [len(g) for g in groups] == [1, 1] and groups[0] != groups[1]


def test_shared_sampling_params_are_not_changed(play: Play, engine: Engine) -> None:
    shared = SamplingParams(max_tokens=9, min_tokens=1, logprobs=None, temperature=0.7)
    before = repr(shared)
    responses = play(GemConfig(ECHO), seeds=[2], samples=4, params=shared)
    assert repr(shared) == before
    assert all(r["rollout_log_probs"] is None for r in responses)
    caps = {p.max_tokens for _, p in engine.requests}
    assert caps == {9}, "OpenRLHF's --rollout.max_new_tokens caps each turn"
    assert {(p.min_tokens, p.detokenize) for _, p in engine.requests} == {(0, False)}
    assert all(engine.tokenizer.eos_token_id in p.stop_token_ids for _, p in engine.requests)
    assert {t.sampling.temperature for r in responses for t in r["label"].episode.turns} == {0.7}


def test_stop_strings_keep_the_text(play: Play, engine: Engine) -> None:
    play(GemConfig(ECHO), seeds=[2], params=SamplingParams(max_tokens=9, stop=["</answer>"]))
    assert {(*p.stop, p.detokenize) for _, p in engine.requests} == {("</answer>", True)}


def test_max_turn_tokens_caps_each_turn(play: Play, engine: Engine) -> None:
    play(GemConfig(ECHO, max_turn_tokens=5), seeds=[0, 1, 2])
    assert {p.max_tokens for _, p in engine.requests} == {5}
    engine.requests.clear()
    play(GemConfig(ECHO, max_turn_tokens=5), seeds=[0], params=SamplingParams(max_tokens=4))
    assert {p.max_tokens for _, p in engine.requests} == {4}


def test_full_context_truncates_the_episode(play: Play) -> None:
    complete = play(GemConfig(ECHO, max_turn_tokens=6), seeds=[2])[0]
    assert len(complete["action_ranges"]) == 3
    length = complete["action_ranges"][1][0] - 1  # no room for a second turn
    (cut,) = play(GemConfig(ECHO, max_turn_tokens=6), seeds=[2], max_length=length)
    assert cut["label"].episode.stop is StopReason.CONTEXT_FULL and cut["truncated"]
    assert len(cut["observation_tokens"]) <= length
    trained = int(experience_of(cut, length).action_mask.sum())
    assert trained == len(cut["label"].episode.turns[0].action_ids)


def test_generation_at_its_token_cap_is_truncated(play: Play) -> None:
    (response,) = play(GemConfig(ECHO, max_turn_tokens=1), seeds=[0])
    assert response["label"].episode.turns[-1].finish is FinishReason.LENGTH
    assert response["truncated"] is True
    (response,) = play(GemConfig("game:GuessTheNumber-v0-easy", max_turn_tokens=24), seeds=[0])
    assert response["label"].episode.turns[-1].finish is FinishReason.STOP
    assert response["truncated"] is False


def test_cut_turn_is_masked_with_on_cut_mask(play: Play) -> None:
    (response,) = play(GemConfig(ECHO, max_turn_tokens=1, on_cut="mask"), seeds=[1])
    assert len(response["label"].episode.turns) == 2
    assert response["action_ranges"] == []


def test_failed_episode_becomes_a_padding_sequence(play: Play) -> None:
    failed, finished = play(GemConfig(MOODY, max_turn_tokens=6), seeds=[1, 2])
    assert failed["label"].episode.stop is StopReason.ENV_ERROR
    assert failed["action_ranges"] == [] and failed["reward"] == 0.0
    assert len(failed["observation_tokens"]) == len(failed["rollout_log_probs"]) > 1
    assert int(experience_of(failed).action_mask.sum()) == 0
    assert len(finished["action_ranges"]) == 2


@pytest.mark.setting("Growing horizon", "works")
def test_horizon_and_weight_version_follow_the_step_of_the_engine(
    play: Play, engine: Engine
) -> None:
    config = GemConfig(ECHO, max_turn_tokens=6, horizon="1,2,3@1")
    turns = []
    for engine.gem_step in range(4):
        episode = play(config, seeds=[2])[0]["label"].episode
        turns.append(len(episode.turns))
        assert {t.versions for t in episode.turns} == {(engine.gem_step, engine.gem_step)}
    assert turns == [1, 2, 3, 3]


def test_label_carries_wrappers_and_tools(play: Play) -> None:
    config = GemConfig(
        "game:GuessTheNumber-v0-easy",
        wrappers="turn_limit(max_turns=1)",
        tools="python",
        max_turn_tokens=8,
    )
    (response,) = play(config, seeds=[3])
    episode = response["label"].episode
    assert "turn_limit" in episode.wrappers and "python" in episode.wrappers
    assert episode.stop in (StopReason.TRUNCATED, StopReason.TERMINATED)


def test_slow_environment_delays_only_its_own_episode(play: Play) -> None:
    all_begun = threading.Barrier(8, timeout=60)

    class Slow(Echo):
        execution = "thread"

        def on_step(self, action: str) -> Any:
            all_begun.wait()  # raises if the steps do not run concurrently
            return super().on_step(action)

    register("test:Slow-v0", Slow)
    try:
        seeds = [0, 3, 6, 9, 12, 15, 18, 21]  # one turn each
        played = play(GemConfig("test:Slow-v0", max_turn_tokens=2), seeds=seeds)
        assert not any(response["label"].episode.failed for response in played)
    finally:
        environments.remove("test:Slow-v0")


def test_episodes_are_recorded_at_once_with_openrlhf_s_own_trainer(
    play: Play, tmp_path: Path
) -> None:
    config = GemConfig(ECHO, max_turn_tokens=6, eval_seeds=1, record=str(tmp_path / "{rank}.jsonl"))
    responses = play(config, seeds=[0, 1, 1_000_000])
    (path,) = tmp_path.iterdir()
    recorded = list(read_episodes(path))
    played = {r["label"].episode.seed: r["label"].episode for r in responses}
    assert {e.seed: e.turns for e in recorded} == {s: e.turns for s, e in played.items()}
    marked = [e.seed for e in recorded if e.final_info.get("evaluation")]
    assert marked == [1_000_000]


@pytest.mark.usefixtures("ray_here")
def test_episodes_are_recorded_as_trained(play: Play, tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    config = GemConfig(MOODY, max_turn_tokens=6, eval_seeds=1, record=str(path))
    with recording():
        responses = play(config, seeds=[0, 1, 2, 4, 6, 1_000_000])
        trained, filtered = responses[:3], responses[3]
        (evaluated,) = read_episodes(path)
        assert evaluated.final_info["evaluation"] and evaluated.seed == 1_000_000
        samples = [experience_of(r) for r in trained]
        put_advantages(samples, update=7)
        ray.get(find_recorder().write_untrained.remote([filtered["label"].key]))
        recorded = {e.seed: e for e in read_episodes(path)}
        assert list(recorded) == [1_000_000, 0, 1, 2, 4], "seed 6 is not trained yet"
    assert [e.seed for e in read_episodes(path)][-1] == 6, "the end of the run writes it"
    expected = advantages([r["label"].episode for r in trained], "rebn")
    assert recorded[0].final_info["advantages"] == pytest.approx(expected[0])
    assert recorded[0].final_info["update"] == 7
    assert recorded[1].failed and recorded[1].final_info["advantages"] == [None, None]
    assert "update" not in recorded[4].final_info
    assert find_recorder() is None


@pytest.mark.setting("Processes", "works")
@pytest.mark.usefixtures("ray_here")
@pytest.mark.parametrize("execution", ["process", "ray"])
def test_environments_run_outside_of_the_engine_s_process(execution: Any, engine: Engine) -> None:
    register("test:Where-v0", "worlds_with_pids:Where")
    config = GemConfig(
        "test:Where-v0", max_turn_tokens=4, execution=execution, hosts={"ray": 2}.get(execution)
    )
    executor, params = AgentExecutor(), SamplingParams(max_tokens=4)

    async def play_three() -> list[dict[str, Any]]:
        calls = [
            executor.execute("", label, params, 512, engine.tokenizer, engine)
            for label in config.labels([0, 1, 2])
        ]
        return await asyncio.gather(*calls)

    try:
        episodes = [r["label"].episode for r in asyncio.run(play_three())]
    finally:
        executor.close()
        environments.remove("test:Where-v0")
    assert [e.failure for e in episodes] == [None] * 3
    pids = {turn.info["pid"] for e in episodes for turn in e.turns}
    parents = {turn.info["parent"] for e in episodes for turn in e.turns}
    assert os.getpid() not in pids
    if execution == "ray":
        assert parents == {"raylet"}, "an actor; its own title may come later"
    else:
        assert len(pids) == 3, "one process per environment"
    assert wait_for_exit(pids)


def test_openrlhf_computes_evaluation_metrics(play: Play) -> None:
    responses = play(
        GemConfig(ECHO, max_turn_tokens=6, eval_seeds=2), seeds=[1_000_000, 1_000_001], samples=2
    )
    dataloader = [
        (["default"], [f"seed {seed}"], [None], [None]) for seed in (1_000_000, 1_000_001)
    ]
    metrics = compute_eval_metrics(dataloader, [experience_of(r) for r in responses], 2)
    assert metrics["eval_default_pass1"] == pytest.approx(sum(r["reward"] for r in responses) / 4)


def test_engine_failure_ends_the_run(
    play: Play, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise every batch would consist of failed episodes, and look like training."""

    async def out_of_memory(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(engine, "generate", out_of_memory)
    with pytest.raises(RuntimeError, match="out of memory"):
        play(GemConfig(ECHO), seeds=[0])


def test_retry_covers_a_single_engine_failure(
    play: Play, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate, calls = engine.generate, []

    async def fail_once(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            raise RuntimeError("the first call fails")
        return await generate(*args, **kwargs)

    monkeypatch.setattr(engine, "generate", fail_once)
    (response,) = play(GemConfig(ECHO, max_turn_tokens=4, retries=1), seeds=[0])
    assert not response["label"].episode.failed
    assert len(calls) > 1


def test_missing_logprobs_end_the_run(
    play: Play, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = engine.generate

    async def drop_logprobs(*args: Any, **kwargs: Any) -> Any:
        result = await generate(*args, **kwargs)
        result.outputs[0].logprobs = None
        return result

    monkeypatch.setattr(engine, "generate", drop_logprobs)
    with pytest.raises(EngineError, match="no logprob for one of"):
        play(GemConfig(ECHO, max_turn_tokens=4), seeds=[0])


@pytest.mark.parametrize("label", ["", None, "42", '{"seed": 1}', '{"seed": "x", "gem": {}}'])
def test_label_without_a_task_is_rejected(label: Any, engine: Engine) -> None:
    call = AgentExecutor().execute("hi", label, SamplingParams(), 64, engine.tokenizer, engine)
    with pytest.raises(ConfigError, match="has no gem task"):
        asyncio.run(call)
