"""Transformers policy: samples and logprobs follow the model, however requests are batched."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
import torch

from gem_core import FinishReason, Generation, Message, Renderer, Rollout, Sampling, make, tasks_for
from gem_core.errors import PolicyError
from gem_core.policies import TransformersPolicy, load_tiny
from gem_core.policies.batching import BatchPolicy
from gem_core.policies.transformers_policy import stop_ids_of

EASY = "game:GuessTheNumber-v0-easy"


@pytest.fixture(scope="module")
def tiny():
    torch.set_num_threads(1)
    return load_tiny()


@pytest.fixture(scope="module")
def prompts(tiny):
    """Prompts of very different lengths, which need padding."""
    _, tokenizer = tiny
    rng = random.Random(7)
    texts = [
        "a",
        "My number is higher than 3.",
        "I am thinking of a whole number between 1 and 10. " * 3,
        "zürich 東京 \N{CAT}",
    ]
    return [tokenizer.encode(rng.choice(texts) + str(n)) for n in range(24)]


def game_prompt(tokenizer):
    """The first prompt of a game that the model has learnt."""
    observation, _ = make(EASY).reset(seed=0)
    return Renderer(tokenizer).start([Message("user", observation)])


def forward_logprobs(model, prompt, ids, temperature=1.0):
    """The logprobs of the sampled ids, from one forward pass without cache or padding."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].float()
    return (
        (logits / temperature).log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()
    )


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.9])
def test_logprobs_equal_a_full_forward_pass(tiny, prompts, temperature):
    policy = TransformersPolicy(*tiny, seed=0)
    generations = policy.generate_batch(prompts, Sampling(temperature=temperature, max_tokens=12))
    for prompt, generation in zip(prompts, generations):
        assert len(generation.ids) == len(generation.logprobs) > 0
        assert generation.logprobs == pytest.approx(
            forward_logprobs(tiny[0], prompt, generation.ids, temperature), abs=1e-4
        )


def test_a_greedy_batch_equals_single_generations(tiny, prompts):
    policy = TransformersPolicy(*tiny, seed=0)
    greedy = Sampling(temperature=0.0, max_tokens=10)
    together = policy.generate_batch(prompts, greedy)
    alone = [policy.generate_batch([p], greedy)[0] for p in prompts]
    assert [g.ids for g in together] == [g.ids for g in alone]
    assert all(g.logprobs == (0.0,) * len(g.ids) for g in together)  # a point mass
    with torch.no_grad():
        assert (
            together[0].ids[0] == tiny[0](torch.tensor([prompts[0]])).logits[0, -1].argmax().item()
        )


def test_a_seeded_request_does_not_depend_on_its_batch(tiny, prompts):
    policy = TransformersPolicy(*tiny)
    seeded = Sampling(max_tokens=8, seed=3)
    together = policy.generate_batch(prompts, seeded)
    alone = [policy.generate_batch([p], seeded)[0] for p in prompts]
    assert [g.ids for g in together] == [g.ids for g in alone]


def test_the_policy_seed_reproduces_a_run_without_global_generators(tiny, prompts):
    sampling = Sampling(max_tokens=8)
    before = torch.random.get_rng_state()
    runs = [
        [g.ids for g in TransformersPolicy(*tiny, seed=s).generate_batch(prompts, sampling)]
        for s in (5, 5, 6)
    ]
    assert runs[0] == runs[1] != runs[2]
    assert torch.equal(before, torch.random.get_rng_state())


def test_samples_follow_the_distribution(tiny, prompts):
    model, _ = tiny
    prompt, n = prompts[0], 4000
    generations = TransformersPolicy(*tiny, seed=1, max_batch=None).generate_batch(
        [prompt] * n, Sampling(max_tokens=1)
    )
    with torch.no_grad():
        expected = model(torch.tensor([prompt])).logits[0, -1].softmax(-1)
    counts = torch.zeros_like(expected).index_add(
        0, torch.tensor([g.ids[0] for g in generations]), torch.ones(n)
    )
    assert (counts / n - expected).abs().sum().item() / 2 < 0.1  # total variation


@pytest.mark.parametrize("cut", [{"top_k": 3}, {"top_p": 0.6}, {"top_k": 50, "top_p": 0.3}])
def test_a_cut_distribution_is_renormalised(tiny, prompts, cut):
    model, _ = tiny
    prompt = prompts[1]
    generations = TransformersPolicy(*tiny, seed=1).generate_batch(
        [prompt] * 64, Sampling(max_tokens=1, **cut)
    )
    with torch.no_grad():
        logprobs = model(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
    order = logprobs.argsort(descending=True)
    top_k, total = order[: cut.get("top_k") or len(order)].tolist(), 0.0
    probabilities = logprobs[top_k].softmax(-1).tolist()  # top-p applies to the top-k tokens
    final = []
    for token, p in zip(top_k, probabilities):
        if total >= cut.get("top_p", 1.0):
            break
        final.append(token)
        total += p
    expected = dict(zip(final, logprobs[final].log_softmax(-1).tolist()))
    assert {g.ids[0] for g in generations} <= set(expected)
    for generation in generations:
        assert generation.logprobs[0] == pytest.approx(expected[generation.ids[0]], abs=1e-4)


def test_stop_tokens_end_a_turn_and_are_kept(tiny, prompts):
    model, tokenizer = tiny
    assert stop_ids_of(model, tokenizer) == {
        tokenizer.eos_token_id,
        tokenizer.convert_tokens_to_ids("<|endoftext|>"),
    }
    generations = TransformersPolicy(model, tokenizer, seed=0).generate_batch(
        [game_prompt(tokenizer)] * 20, Sampling(max_tokens=30)
    )
    stops = stop_ids_of(model, tokenizer)
    assert {g.finish for g in generations} == {FinishReason.STOP}
    for generation in generations:
        assert generation.ids[-1] in stops
        assert not stops & set(generation.ids[:-1])
    chosen = generations[0].ids[0]
    own = TransformersPolicy(model, tokenizer, stop_ids=[chosen]).generate_batch(
        [prompts[0]], Sampling(temperature=0, max_tokens=50)
    )
    assert chosen not in own[0].ids[:-1]


def test_stop_strings_end_a_turn(tiny):
    model, tokenizer = tiny
    (generation,) = TransformersPolicy(model, tokenizer, seed=0).generate_batch(
        [game_prompt(tokenizer)], Sampling(max_tokens=20, stop=("boxed{",))
    )
    text = tokenizer.decode(generation.ids)
    assert text.endswith("boxed{")
    assert generation.finish is FinishReason.STOP


def test_max_tokens_cuts_with_finish_reason_length(tiny, prompts):
    generations = TransformersPolicy(*tiny, stop_ids=[], seed=0).generate_batch(
        prompts, Sampling(max_tokens=3)
    )
    assert {(len(g.ids), g.finish) for g in generations} == {(3, FinishReason.LENGTH)}


def test_requests_with_different_max_tokens_share_a_batch(tiny, prompts):
    policy = TransformersPolicy(*tiny, seed=0)

    async def ask():
        policy.set_live(len(prompts))
        return await asyncio.gather(
            *(
                policy.generate(p, Sampling(temperature=0, max_tokens=1 + n % 5))
                for n, p in enumerate(prompts)
            )
        )

    generations = asyncio.run(ask())
    assert policy.batches == 1
    full = policy.generate_batch(prompts, Sampling(temperature=0, max_tokens=5))
    for n, (capped, uncapped) in enumerate(zip(generations, full)):
        cap = 1 + n % 5
        assert capped.ids == uncapped.ids[:cap]
        assert len(capped.logprobs) == len(capped.ids)
        assert capped.finish is (
            FinishReason.LENGTH if len(uncapped.ids) > cap else uncapped.finish
        )


def test_a_generation_has_the_weight_version(tiny, prompts):
    policy = TransformersPolicy(*tiny, seed=0)
    policy.weight_version = 4
    (generation,) = policy.generate_batch(prompts[:1], Sampling(max_tokens=2))
    assert generation.versions == (4, 4)


def test_sampling_restores_the_training_mode(tiny, prompts):
    model, _ = tiny
    policy = TransformersPolicy(*tiny, seed=0)
    model.train()
    try:
        policy.generate_batch(prompts[:2], Sampling(max_tokens=2))
        assert model.training
    finally:
        model.eval()


def test_generate_batch_rejects_an_empty_prompt(tiny):
    with pytest.raises(PolicyError, match="no ids"):
        TransformersPolicy(*tiny).generate_batch([[5], []], Sampling())


def test_episodes_are_token_exact(tiny):
    """Every recorded logprob equals that of a forward pass over the turn's prompt."""
    model, tokenizer = tiny
    policy = TransformersPolicy(model, tokenizer, seed=0)
    engine = Rollout(policy, Renderer(tokenizer), sampling=Sampling(max_tokens=12), concurrency=16)
    episodes = engine.run_batch(tasks_for(EASY, range(16)))
    assert policy.batches <= 4 + 4  # one per turn; stragglers add some
    for episode in episodes:
        assert not episode.failed
        for number, turn in enumerate(episode.turns):
            expected = forward_logprobs(model, episode.prompt_ids(number), turn.action_ids)
            assert turn.logprobs == pytest.approx(expected, abs=1e-4)


def test_the_same_seeds_give_the_same_episodes(tiny):
    model, tokenizer = tiny

    def play():
        policy = TransformersPolicy(model, tokenizer, seed=11)
        engine = Rollout(
            policy, Renderer(tokenizer), sampling=Sampling(max_tokens=12), concurrency=32
        )
        return [
            (e.seed, [t.action_ids for t in e.turns])
            for e in engine.run_batch(tasks_for(EASY, range(32)))
        ]

    assert play() == play()


# BatchPolicy, without a model.


def answer(prompts, sampling):
    return [
        Generation(
            tuple(range(sampling.max_tokens)), (0.0,) * sampling.max_tokens, FinishReason.LENGTH
        )
        for _ in prompts
    ]


def test_requests_with_different_temperatures_do_not_share_a_batch():
    seen = []
    policy = BatchPolicy(lambda p, s: (seen.append((len(p), s.temperature)), answer(p, s))[1])

    async def ask():
        await asyncio.gather(
            *(policy.generate([1], Sampling(temperature=t, max_tokens=2)) for t in (1.0, 0.5, 1.0))
        )

    asyncio.run(ask())
    assert sorted(seen) == [(1, 0.5), (2, 1.0)]


def test_a_cancelled_run_does_not_block_the_next():
    """A batch is running when its event loop ends; the policy then serves a new loop."""
    running, overlaps = [], []

    def slow(prompts, sampling):
        overlaps.append(bool(running))
        running.append(1)
        time.sleep(2.0)
        running.pop()
        return answer(prompts, sampling)

    policy = BatchPolicy(slow)

    async def ask(seconds):
        return await asyncio.wait_for(policy.generate([1], Sampling(max_tokens=2)), seconds)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(ask(0.1))
    assert asyncio.run(ask(60)).ids == (0, 1)
    assert overlaps == [False, False]  # calls of the engine do not overlap


def test_an_engine_exception_is_the_cause_of_every_requests_error():
    def fail(prompts, sampling):
        raise ZeroDivisionError("no such kernel")

    policy = BatchPolicy(fail)

    async def ask():
        return await asyncio.gather(
            *(policy.generate([1], Sampling()) for _ in range(3)), return_exceptions=True
        )

    errors = asyncio.run(ask())
    assert all(isinstance(e, PolicyError) and "no such kernel" in str(e) for e in errors)
    assert all(isinstance(e.__cause__, ZeroDivisionError) for e in errors)


def test_batch_policy_rejects_two_event_loops_at_once():
    policy = BatchPolicy(answer)

    async def outer():
        await policy.generate([1], Sampling(max_tokens=1))

        def inner():
            return asyncio.run(policy.generate([1], Sampling(max_tokens=1)))

        with pytest.raises(PolicyError, match="one event loop"):
            await asyncio.to_thread(inner)

    asyncio.run(outer())


def test_a_sampling_seed_reproduces_episodes_that_differ_within_a_group(tiny):
    """The requests of one round, each with its own seed, share a batch."""
    model, tokenizer = tiny

    def play(**settings):
        policy = TransformersPolicy(model, tokenizer, max_wait=5.0)
        with Rollout(
            policy, Renderer(tokenizer), sampling=Sampling(max_tokens=12, **settings)
        ) as engine:
            episodes = engine.run_batch(tasks_for(EASY, range(4), samples=4))
        return [[t.action_ids for t in e.turns] for e in episodes], policy.batches

    (first, batches), (second, _) = play(seed=1), play(seed=1)
    assert first == second
    assert all(len({str(e) for e in first[i : i + 4]}) > 1 for i in range(0, 16, 4))
    assert batches <= play()[1] + 1


def test_a_turn_ends_at_the_templates_end_token_that_is_not_eos():
    model, tokenizer = load_tiny()
    end, other = tokenizer.eos_token_id, tokenizer.encode("z", add_special_tokens=False)[0]
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(other)
    model.generation_config.eos_token_id = other
    renderer = Renderer(tokenizer)
    assert renderer.turn_end == end
    policy = TransformersPolicy(model, tokenizer, seed=0)
    with Rollout(policy, renderer, sampling=Sampling(max_tokens=64)) as rollout:
        episodes = rollout.run_batch(tasks_for(EASY, range(4)))
    turns = [turn for episode in episodes for turn in episode.turns]
    assert any(turn.action_ids[-1] == end for turn in turns)
    assert all(end not in turn.action_ids[:-1] for turn in turns)
    own = TransformersPolicy(model, tokenizer, stop_ids=[other], seed=0)
    Rollout(own, renderer)
    assert own.stop_ids == {other}, "stop_ids of the caller stay"
