"""One and several models in an engine of `benchmarks/continuous.py`, on a CPU."""

from __future__ import annotations

import asyncio
import copy
import sys

import pytest
import torch
from project import ROOT
from tiny_qwen2 import tiny_qwen2

from gem_core import Limits, Message, Renderer, Rollout, Sampling, tasks_for, token_sequences
from gem_core.errors import ConfigError
from gem_core.policies import load_tiny

sys.path.insert(0, str(ROOT / "benchmarks"))

from continuous import ContinuousPolicy

EASY = "game:GuessTheNumber-v0-easy"
SIZES = {"slots": 8, "context": 512}


@pytest.fixture(scope="module")
def tiny():
    torch.set_num_threads(1)
    return load_tiny()


def changed(model, seed=0):
    """Return a copy of a model with clearly different weights."""
    model, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise * 0.5 * parameter.abs().mean())
    return model


@pytest.fixture(params=["llama", "qwen2", "qwen2-untied"])
def models(request, tiny):
    """Two models of each supported family."""
    model = tiny[0] if request.param == "llama" else tiny_qwen2(tied=request.param == "qwen2")
    return [model, changed(model)]


@pytest.fixture
def pair(tiny):
    """Two policies of the Llama family, with one engine."""
    return ContinuousPolicy.for_models([tiny[0], changed(tiny[0])], tiny[1], **SIZES)


def play(policies, tokenizer, counts, temperature=1.0, wrappers=""):
    """Play `counts` episodes with these policies at the same time; return them by policy."""
    sampling, limits = Sampling(temperature=temperature, max_tokens=12), Limits(max_context=500)

    async def batch(policy, count):
        renderer = Renderer(tokenizer)
        with Rollout(policy, renderer, sampling=sampling, limits=limits, concurrency=20) as rollout:
            return await rollout.batch(tasks_for(EASY, range(count), wrappers=wrappers))

    async def batches():
        return await asyncio.gather(*(batch(p, n) for p, n in zip(policies, counts) if n))

    return asyncio.run(batches())


def play_one(policy, tokenizer, count, temperature=0.0, wrappers=""):
    return play([policy], tokenizer, [count], temperature, wrappers)[0]


def actions(episodes):
    return [[turn.action_ids for turn in episode.turns] for episode in episodes]


def check_logprobs(model, episodes):
    """Compare the recorded logprobs with a forward pass; return the number of tokens."""
    checked = 0
    for episode in episodes:
        assert episode.failure is None
        for sequence in token_sequences(episode):
            ids = torch.tensor([sequence.ids])
            with torch.no_grad():
                logprobs = model(ids).logits[0, :-1].float().log_softmax(-1)
            expected = logprobs.gather(-1, ids[0, 1:, None])[:, 0]
            for i, trained in enumerate(sequence.mask):
                if trained:
                    assert sequence.logprobs[i] == pytest.approx(expected[i - 1].item(), abs=1e-4)
                    checked += 1
    return checked


@pytest.mark.parametrize("lanes", [1, 2])
def test_logprobs_of_each_lane_equal_a_forward_pass_of_its_model(models, tiny, lanes):
    policies = ContinuousPolicy.for_models(models[:lanes], tiny[1], **SIZES)
    batches = play(policies, tiny[1], [12, 24])
    for model, policy, episodes in zip(models, policies, batches):
        assert check_logprobs(model, episodes) > 100
        assert policy.tokens == sum(len(t.action_ids) for e in episodes for t in e.turns)
        assert policy.seconds == policies[0].seconds > 0
    with pytest.raises(AssertionError):
        check_logprobs(models[lanes - 2], batches[-1])


@pytest.mark.parametrize("wrappers", ["", "concat"])
def test_greedy_actions_of_each_lane_equal_those_of_a_policy_of_its_model(models, tiny, wrappers):
    """There are more episodes than slots; `concat` rewrites the context every turn."""
    models = [*models, changed(models[0], seed=1)]
    counts = [12, 20, 1]
    policies = ContinuousPolicy.for_models(models, tiny[1], **SIZES)
    batches = [actions(b) for b in play(policies, tiny[1], counts, 0.0, wrappers)]
    for model, episodes, count in zip(models, batches, counts):
        alone = ContinuousPolicy(model, tiny[1], **SIZES)
        assert episodes == actions(play_one(alone, tiny[1], count, wrappers=wrappers))
    assert batches[0][:12] != batches[1][:12]


def test_refresh_changes_only_its_lane(models, tiny):
    policies = ContinuousPolicy.for_models(models, tiny[1], **SIZES)
    before = [actions(b) for b in play(policies, tiny[1], [8, 8], 0.0)]
    models[1].load_state_dict(changed(models[1], seed=1).state_dict())
    assert [actions(b) for b in play(policies, tiny[1], [8, 8], 0.0)] == before
    policies[1].refresh()
    assert [policy.weight_version for policy in policies] == [0, 1]
    first, second = play(policies, tiny[1], [8, 8], 0.0)
    assert actions(first) == before[0]
    alone = ContinuousPolicy(models[1], tiny[1], **SIZES)
    assert actions(second) == actions(play_one(alone, tiny[1], 8)) != before[1]
    assert {turn.versions for e in first for turn in e.turns} == {(0, 0)}
    assert {turn.versions for e in second for turn in e.turns} == {(1, 1)}


@pytest.mark.parametrize("counts", [(3, 8), (8, 3), (0, 5), (5, 0)])
def test_turns_of_both_lanes_prefill_only_what_is_not_cached(pair, tiny, counts, monkeypatch):
    calls, prefill = [], pair[0]._decoder.prefill

    def spy(rows, new, starts):
        calls.extend(zip(rows, map(len, new), starts))
        prefill(rows, new, starts)

    monkeypatch.setattr(pair[0]._decoder, "prefill", spy)
    batches = dict(zip([i for i in (0, 1) if counts[i]], play(pair, tiny[1], counts)))
    for lane, episodes in batches.items():
        expected = []
        for episode in episodes:
            cached = 0
            for t, turn in enumerate(episode.turns):
                prompt = len(episode.prompt_ids(t))
                expected.append((prompt - cached, cached))
                cached = prompt + len(turn.action_ids) - 1  # the last token is not cached
        assert len(expected) > counts[lane], "episodes have several turns"
        own = [(width, start) for row, width, start in calls if row % 2 == lane]
        assert sorted(own) == sorted(expected)
        assert check_logprobs(pair[0]._decoder.models[lane], episodes) > 0
    assert {row % 2 for row, _, _ in calls} == set(batches)


def test_padded_prefills_with_static_inputs_compute_the_same(models, tiny):
    """As on a GPU; a replayed graph repeats the first call with its sizes, so this does too."""
    policies = ContinuousPolicy.for_models(models, tiny[1], **SIZES)
    decoder, captured = policies[0]._decoder, {}
    decoder.use_graphs, decoder._sent = True, torch.tensor
    decoder._as_graph = lambda key, call: captured.setdefault(key, call)
    batches = play(policies, tiny[1], [5, 20], 0.0)
    assert {len(key) for key in captured} == {2, 3}, "of decoding steps and of prefills"
    for model, episodes in zip(models, batches):
        alone = ContinuousPolicy(model, tiny[1], **SIZES)
        assert actions(episodes) == actions(play_one(alone, tiny[1], len(episodes)))


def prompt_of(tokenizer):
    return Renderer(tokenizer).start([Message("user", "Guess a number between 1 and 10.")])


def test_pause_of_one_policy_does_not_stop_the_other(pair, tiny):
    prompt, sampling = prompt_of(tiny[1]), Sampling(max_tokens=8)

    async def generate_while_paused():
        running = asyncio.ensure_future(pair[0].generate(prompt, sampling))
        await asyncio.sleep(0.05)
        await pair[0].pause()
        assert running.done(), "pause waits for turns that are being sampled"
        late = asyncio.ensure_future(pair[0].generate(prompt, sampling))
        others = await asyncio.wait_for(
            asyncio.gather(*(pair[1].generate(prompt, sampling) for _ in range(12))), 30
        )
        assert all(generation.ids for generation in others)
        assert not late.done()
        pair[0].refresh()
        pair[0].resume()
        return await asyncio.wait_for(late, 30)

    assert asyncio.run(generate_while_paused()).versions == (1, 1)


def test_lanes_sample_at_different_temperatures_at_the_same_time(pair, tiny):
    prompt = prompt_of(tiny[1])

    async def generate_all():
        settings = [Sampling(temperature=t, max_tokens=8) for t in (0.0, 5.0)]
        return await asyncio.gather(
            *(pair[i % 2].generate(prompt, settings[i % 2]) for i in range(12))
        )

    generations = asyncio.run(generate_all())
    assert len({g.ids for g in generations[::2]}) == 1
    assert all(p == 0.0 for g in generations[::2] for p in g.logprobs)
    assert len({g.ids for g in generations[1::2]}) == 6


def test_engine_failure_reaches_all_lanes_and_they_recover(pair, tiny, monkeypatch):
    with monkeypatch.context() as failing:
        failing.setattr(pair[0]._decoder, "decode", lambda *_: 1 / 0)
        for episodes in play(pair, tiny[1], [3, 3]):
            assert all("ZeroDivisionError" in str(e.failure) for e in episodes)
    for episodes in play(pair, tiny[1], [3, 3]):
        assert all(e.failure is None for e in episodes)


def test_engine_frees_cached_memory_when_the_gpu_is_full(pair, tiny, monkeypatch):
    freed = []

    def decode(*_):
        raise torch.OutOfMemoryError("the GPU is full")

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(True))
    monkeypatch.setattr(pair[0]._decoder, "decode", decode)
    assert "the GPU is full" in str(play_one(pair[0], tiny[1], 1)[0].failure)
    assert freed == [True]


def test_turn_that_is_cancelled_while_it_waits_is_not_sampled(pair, tiny):
    prompt, sampling = prompt_of(tiny[1]), Sampling(max_tokens=8)

    async def generate_after_a_cancelled_turn():
        await pair[0].pause()
        cancelled = asyncio.ensure_future(pair[0].generate(prompt, sampling))
        await asyncio.sleep(0.01)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        pair[0].resume()
        return await pair[0].generate(prompt, sampling)

    generation = asyncio.run(generate_after_a_cancelled_turn())
    assert pair[0].tokens == len(generation.ids)


def test_models_of_an_engine_must_have_the_same_shape(tiny):
    with pytest.raises(ConfigError, match="same shape"):
        ContinuousPolicy.for_models([tiny[0], tiny_qwen2()], tiny[1], **SIZES)
