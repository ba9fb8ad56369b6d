"""The algorithm benchmark on a CPU: its engine, its training, its plan and its tables.

The benchmark itself compares the algorithms, on a GPU.
"""

from __future__ import annotations

import asyncio
import copy
import json
import queue
import sys
from dataclasses import asdict, replace
from functools import partial
from inspect import signature
from statistics import fmean, pstdev
from types import SimpleNamespace

import pytest
import torch
from project import ROOT
from tiny_qwen2 import tiny_qwen2
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import GPT2Config, LlamaConfig, Qwen2Config

from gem_core import (
    Limits,
    Message,
    Renderer,
    Rollout,
    Sampling,
    advantages,
    make,
    tasks_for,
    token_sequences,
)
from gem_core.errors import ConfigError, PolicyError
from gem_core.policies import TransformersPolicy, load_tiny
from gem_envs.datasets.reasoning import Reasoning

BENCHMARKS = ROOT / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import algorithms  # noqa: E402
import algorithms_model  # noqa: E402
import algorithms_plan  # noqa: E402
import algorithms_report  # noqa: E402
import algorithms_reproduce  # noqa: E402
import algorithms_training  # noqa: E402
import algorithms_warm_up  # noqa: E402
import algorithms_workers  # noqa: E402
from continuous import ContinuousPolicy  # noqa: E402
from continuous_decoder import Decoder  # noqa: E402
from packed import PackedTrunk  # noqa: E402
from packed_graphs import CALLS_BEFORE_CAPTURE, padded, padded_size  # noqa: E402

EASY = "game:GuessTheNumber-v0-easy"


@pytest.fixture(scope="module")
def tiny():
    torch.set_num_threads(1)
    return load_tiny()


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen2-untied"])
def family(request, tiny):
    """A tiny model of each supported family, with the tokenizer of the tiny model."""
    model, tokenizer = tiny
    if request.param != "llama":
        model = tiny_qwen2(tied=request.param == "qwen2")
    return model, tokenizer


@pytest.fixture
def policy(tiny):
    return ContinuousPolicy(*tiny, slots=8, context=512)


@pytest.fixture(scope="module")
def trainer(tiny, tmp_path_factory):
    work = tmp_path_factory.mktemp("work")
    return algorithms_training.Trainer(*algorithms_model.load("tiny"), work, slots=16)


def play(policy, tokenizer, count=24, temperature=1.0, wrappers=""):
    sampling, limits = Sampling(temperature=temperature, max_tokens=12), Limits(max_context=500)
    with Rollout(
        policy, Renderer(tokenizer), sampling=sampling, limits=limits, concurrency=20
    ) as engine:
        return engine.run_batch(tasks_for(EASY, range(count), wrappers=wrappers))


def actions(episodes):
    return [[turn.action_ids for turn in episode.turns] for episode in episodes]


@pytest.mark.parametrize("wrappers", ["", "concat"])
def test_greedy_actions_equal_those_of_the_transformers_policy(tiny, policy, wrappers):
    """There are more episodes than slots; `concat` rewrites the context every turn."""
    ours = play(policy, tiny[1], temperature=0.0, wrappers=wrappers)
    expected = play(TransformersPolicy(*tiny), tiny[1], temperature=0.0, wrappers=wrappers)
    assert actions(ours) == actions(expected)


def test_turn_prefills_only_what_its_episode_has_not_cached(tiny, policy, monkeypatch):
    """Also when all turns end at once, so the engine stops between two turns."""
    calls, prefill = [], policy._decoder.prefill

    def spy(rows, new, starts):
        calls.append((max(map(len, new)), min(starts)))
        prefill(rows, new, starts)

    monkeypatch.setattr(policy._decoder, "prefill", spy)
    play(policy, tiny[1], count=1)
    assert calls[0][1] == 0 and len(calls) > 1
    assert all(start > 0 and width < 20 for width, start in calls[1:])


def test_requests_with_different_temperatures_do_not_share_a_batch(tiny, policy):
    """Greedy turns stay greedy while others are sampled at a high temperature."""
    _, tokenizer = tiny
    prompt = Renderer(tokenizer).start(
        [Message("user", "I am thinking of a whole number between 1 and 10.")]
    )
    cold, hot = Sampling(temperature=0.0, max_tokens=8), Sampling(temperature=5.0, max_tokens=8)

    async def generate_all():
        return await asyncio.gather(
            *(policy.generate(prompt, cold if i % 2 else hot) for i in range(12))
        )

    generations = asyncio.run(generate_all())
    assert len({g.ids for g in generations[1::2]}) == 1
    assert all(p == 0.0 for g in generations[1::2] for p in g.logprobs)
    assert len({g.ids for g in generations[::2]}) == 6


def test_policy_uses_new_weights_only_after_refresh(policy, tiny):
    model, tokenizer = tiny
    before = actions(play(policy, tokenizer, temperature=0.0))
    original = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    try:
        with torch.no_grad():
            for tensor in model.parameters():
                tensor.mul_(0.5)
        assert actions(play(policy, tokenizer, temperature=0.0)) == before
        policy.refresh()
        after = play(policy, tokenizer, temperature=0.0)
        assert actions(after) != before
        assert actions(after) == actions(
            play(TransformersPolicy(*tiny), tokenizer, temperature=0.0)
        )
        assert {turn.versions for episode in after for turn in episode.turns} == {(1, 1)}
    finally:
        model.load_state_dict(original)


@pytest.mark.parametrize(
    ("sampling", "prompt", "message"),
    [
        (Sampling(top_k=5), [1], "top_k"),
        (Sampling(stop=("x",)), [1], "stop"),
        (Sampling(seed=1), [1], "seed"),
        (Sampling(), [], "no ids"),
        (Sampling(), [1] * 600, "context of 512"),
    ],
)
def test_policy_rejects_unsupported_requests(policy, sampling, prompt, message):
    with pytest.raises((ConfigError, PolicyError), match=message):
        asyncio.run(policy.generate(prompt, sampling))


def test_policy_reports_an_engine_failure_and_recovers(policy, tiny, monkeypatch):
    with monkeypatch.context() as failing:
        failing.setattr(policy._decoder, "decode", lambda *_: 1 / 0)
        episodes = play(policy, tiny[1], count=4)
        assert all("ZeroDivisionError" in str(e.failure) for e in episodes)
    assert all(e.failure is None for e in play(policy, tiny[1], count=4))


def short(algorithm, **more):
    settings = {"updates": 2, "episodes": 32, "rate": 1e-3, "evaluated": 16, **more}
    return algorithms_plan.Run(f"test/{algorithm}", algorithms_plan.GUESS, algorithm, **settings)


@pytest.mark.parametrize("algorithm", list(algorithms_plan.TUNED_AS))
def test_every_algorithm_trains(trainer, algorithm):
    result = trainer.train(short(algorithm))
    assert len(result["curve"]["success"]) == 2
    assert ("value_loss" in result["curve"]) == (algorithm == "ppo")
    assert min(result["curve"]["grad_norm"]) > 0
    assert max(result["curve"]["apart"]) < 1e-3
    assert result["evaluation"]["failed"] == 0
    assert 1 / 16 <= result["evaluation"]["commonest"] <= 1
    json.dumps(result)


def test_runs_of_one_process_do_not_change_each_other(tiny, tmp_path):
    """Their weights differ after the first update, and each samples from its own."""
    lanes = algorithms_training.Trainer.several(
        3, *algorithms_model.load("tiny"), tmp_path, slots=16, room=2048, context=512
    )
    runs = [
        short("rebn", rate=1e-2, updates=3),
        short("ppo", rate=1e-2, updates=2, seed=1),
        short("reinforce", updates=0),
    ]

    async def train():
        return await asyncio.gather(*(own.train_run(run) for own, run in zip(lanes, runs)))

    results = asyncio.run(train())
    for result, run in zip(results, runs):
        assert [len(curve) for curve in result["curve"].values()] == [run.updates] * len(
            result["curve"]
        )
        assert max(result["curve"].get("apart", [0])) < 1e-3
    trained, other, untrained = (lane.model.lm_head.weight for lane in lanes)
    assert not torch.equal(trained, other)
    assert torch.equal(untrained, lanes[0].base["lm_head.weight"])
    assert all(lane.base is lanes[0].base for lane in lanes)


def test_only_runs_without_other_lanes_are_seeded(tmp_path):
    """A seed would repeat noise that the other lanes have used."""

    def generator_of(lanes):
        own, *_ = algorithms_training.Trainer.several(
            lanes, *algorithms_model.load("tiny"), tmp_path, slots=2, room=512, context=64
        )
        generator = own.policy._decoder.generator
        before = generator.initial_seed()
        own.restore(7)
        return before, generator.initial_seed()

    assert generator_of(1)[1] == 7
    seeds = [generator_of(2) for _ in range(2)]
    assert all(before == after for before, after in seeds)
    assert seeds[0] != seeds[1], "two processes must not sample with the same noise"


@pytest.mark.parametrize(("failed", "raises"), [(3, False), (4, True)])
def test_run_fails_if_the_policy_failed_in_a_tenth_of_its_episodes(
    trainer, monkeypatch, failed, raises
):
    left, generate = iter(range(failed)), trainer.policy.generate

    async def failing(prompt_ids, sampling):
        if next(left, None) is not None:
            raise PolicyError("the engine failed")
        return await generate(prompt_ids, sampling)

    monkeypatch.setattr(trainer.policy, "generate", failing)
    run = short("rebn", updates=1)
    if raises:
        message = "failed in 4 of 32 episodes of game:Guess.*, the first time with: .* failed"
        with pytest.raises(PolicyError, match=message):
            trainer.train(run)
    else:
        assert trainer.train(run)["curve"]["failed"] == [3]


def test_run_trains_on_the_rest_if_environments_failed(trainer, monkeypatch):
    env = type(make(EASY).unwrapped)
    left, reset = iter(range(8)), env.on_reset

    def failing(*args, **kwargs):
        return 1 / 0 if next(left, None) is not None else reset(*args, **kwargs)

    monkeypatch.setattr(env, "on_reset", failing)
    assert trainer.train(short("rebn", updates=1))["curve"]["failed"] == [8]


def test_every_run_starts_from_the_same_weights(trainer):
    trainer.train(short("rebn", rate=1e-2))
    trained = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    trainer.train(short("rebn", updates=0))
    assert any(not torch.equal(trained[name], tensor) for name, tensor in trainer.base.items())
    weights = trainer.model.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in trainer.base.items())


def test_update_uses_the_gradient_of_the_documented_loss(trainer):
    """The loss is -1/Z * sum of A * log pi, for any split into micro-batches."""
    model = trainer.model
    trainer.restore(0)
    episodes = asyncio.run(
        trainer.play(algorithms_plan.GUESS, range(24), 1, None, algorithms_training.Clock())
    )
    per_turn = advantages(episodes, "rebn", gamma=0.9)
    pairs = [
        (sequence, sequence.broadcast(turns))
        for e, turns in zip(episodes, per_turn)
        for sequence in token_sequences(e)
    ]
    model.zero_grad()
    loss = 0.0
    for sequence, per_token in pairs:
        ids = torch.tensor([sequence.ids])
        logp = model(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        loss = loss - (logp * torch.tensor(per_token[1:]) * torch.tensor(sequence.mask[1:])).sum()
    (loss / sum(sum(sequence.mask) for sequence, _ in pairs)).backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters()])

    class GradientReader:
        def step(self):
            self.gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
            return 1.0

    model.zero_grad()
    reader = GradientReader()
    metrics = trainer.update(episodes, per_turn, reader)
    torch.testing.assert_close(reader.gradient, expected, rtol=1e-3, atol=1e-5)
    assert metrics.apart < 1e-4, "sampler and trainer have the same weights"
    assert (metrics.clipped, metrics.ratio_gap) == (0.0, 0.0)
    with torch.no_grad():
        model.model.norm.weight.mul_(1.5)
    assert trainer.update(episodes, per_turn, GradientReader()).apart > 1e-2


def test_optimizer_keeps_steps_that_are_too_small_for_bfloat16(tiny):
    model, _ = load_tiny()
    algorithms_model.to_bfloat16(model)
    weight = model.model.norm.weight
    optimizer = algorithms_model.Optimizer(model, 1e-3)
    for step in range(8):
        weight.grad = torch.ones_like(weight)
        norm = optimizer.step(0.0 if step == 0 else 1.0)
        assert norm == pytest.approx(len(weight) ** 0.5, rel=1e-3)
    copied = next(c for c, p in zip(optimizer.copies, optimizer.parameters) if p is weight)
    assert weight.dtype == torch.bfloat16
    torch.testing.assert_close(
        copied - tiny[0].model.norm.weight, torch.full_like(copied, -7e-3), rtol=0.1, atol=4e-3
    )
    torch.testing.assert_close(weight, copied.bfloat16())
    assert all(c.grad is None for c in optimizer.copies), "they would take memory"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (GPT2Config(), "'llama' and 'qwen2'; got one of type 'gpt2'"),
        (LlamaConfig(attention_bias=True), "does not support attention_bias of"),
        (Qwen2Config(use_sliding_window=True), "does not support use_sliding_window of"),
        (Qwen2Config(hidden_act="gelu"), "does not support hidden_act=gelu of"),
    ],
)
def test_engine_rejects_models_that_it_would_compute_wrongly(config, message):
    model = SimpleNamespace(config=config)
    with pytest.raises(ConfigError, match=message):
        ContinuousPolicy(model, None)
    with pytest.raises(ConfigError, match=message):
        PackedTrunk(model)


@pytest.mark.parametrize("graph_tokens", [0, 2048])
def test_packed_sequences_give_the_model_its_own_logprobs_and_gradients(family, graph_tokens):
    model = copy.deepcopy(family[0])
    trunk = PackedTrunk(model.model, graph_tokens=graph_tokens)
    batches = [  # two sizes, and the second occurrence of the first
        ([[1, 2, 3]], [[1]]),
        ([list(range(5, 10)), [7, 7, 9], list(range(40, 57))], [[1, 4], [2], [1, 2, 16]]),
        ([[4] * 600, [8] * 500], [[1, 500], [20]]),
        ([[9] * 700, [8] * 401], [[1, 500], [20]]),
    ]
    logprobs = []
    for sequences, positions in batches:
        with torch.no_grad():
            before = trunk.logprobs(model.lm_head.weight, sequences, positions)
        logprobs.append(trunk.logprobs(model.lm_head.weight, sequences, positions))
        torch.testing.assert_close(before, logprobs[-1].detach())
        logprobs[-1].square().sum().backward()
    assert len(trunk.graphs.captured) == (2 if graph_tokens else 0)
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    expected = []
    for sequences, positions in batches:
        for ids, own in zip(sequences, positions):
            logits = model(torch.tensor([ids])).logits[0].log_softmax(-1)
            expected += [logits[p - 1, ids[p]] for p in own]
    torch.testing.assert_close(torch.cat(logprobs), torch.stack(expected), rtol=1e-4, atol=1e-4)
    torch.stack(expected).square().sum().backward()
    for gradient, p in zip(gradients, model.parameters()):
        torch.testing.assert_close(gradient, p.grad, rtol=1e-3, atol=1e-4)


def test_graphs_read_weights_that_change_in_place_and_reject_others(family):
    model = copy.deepcopy(family[0])
    trunk = PackedTrunk(model.model, graph_tokens=1024)
    hidden = [trunk.hidden([[1, 2, 3]]).detach() for _ in range(2)]
    torch.testing.assert_close(hidden[0], hidden[1])
    with torch.no_grad():
        model.model.norm.weight.mul_(2)
    torch.testing.assert_close(trunk.hidden([[1, 2, 3]]).detach(), 2 * hidden[0])
    model.model.norm.weight.data = model.model.norm.weight.data.clone()
    with pytest.raises(RuntimeError, match="the weights were replaced"):
        trunk.hidden([[1, 2, 3]])


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of torch.compile itself
def test_graphs_do_not_compile_the_layers_again(family):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    trunk = PackedTrunk(copy.deepcopy(family[0]).model, graph_tokens=2048)
    (before, attention, after), *rest = trunk.layers.args
    before, after = (torch.compile(part, backend=counter) for part in (before, after))
    parts = (before, attention, after)
    trunk.graphs.layers = partial(trunk.layers.func, parts, *rest)
    frames = []
    for sequences in ([[1, 2, 3]], [[1, 2, 3]], [[4] * 600, [8] * 500], [[4] * 601, [8] * 500]):
        trunk.hidden(sequences).sum().backward()
        frames.append(counter.frame_count)
    assert len(trunk.graphs.captured) == 2
    assert frames == [2] * 4


@pytest.mark.parametrize("lanes", [1, 2])
def test_decoder_compiles_once_for_all_sizes(tiny, lanes):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    decoder = Decoder([tiny[0]] * lanes, slots=64, context=256, seed=0)
    decoder.rotate, decoder.gate = (
        torch.compile(call, backend=counter) for call in (decoder.rotate, decoder.gate)
    )
    for rows, length in ((2, 5), (40, 9), (17, 30)):
        decoder.prefill(list(range(rows)), [[5] * length] * rows, [0] * rows)
        decoder.decode(list(range(rows)), length + 1)
    assert counter.frame_count == 2


def test_padding_fills_the_sizes_of_a_graph():
    for lengths, filling, size, longest in (
        ([300, 200], [512, 12], 128, 512),
        ([513, 511], [], 128, 1024),
        ([8] * 128, [], 256, 256),
        ([9] * 128, [256, 256, 256, 128], 256, 256),
    ):
        empty = [0] * (size - len(lengths) - len(filling))
        graph = padded_size(lengths)
        assert graph == (sum(lengths + filling), size, longest)
        assert padded(lengths, graph) == lengths + filling + empty


@pytest.mark.parametrize("second", ["forward", "other forward", "backward"])
def test_backward_pass_after_another_pass_raises(family, second):
    model = copy.deepcopy(family[0])
    trunks = [PackedTrunk(model.model, graph_tokens=2000) for _ in range(2)]
    first = [trunk.hidden([[1, 2, 3]]) for trunk in (*trunks, *trunks)][-1]
    if second == "backward":
        first.sum().backward(retain_graph=True)
    else:
        trunks[second == "forward"].hidden([[1, 2, 3]])
    with pytest.raises(RuntimeError, match="call backward once, and before the next forward"):
        first.sum().backward()


def test_call_without_a_graph_is_not_padded(family):
    trunk = PackedTrunk(family[0].model, graph_tokens=1024)
    trunk.hidden([[5] * 513, [5] * 512])
    assert not trunk.graphs.seen
    trunk.hidden([[5] * 512, [5] * 512])
    assert trunk.graphs.seen == {(1024, 128, 512)}


def test_call_with_a_larger_graph_has_the_same_result(family):
    model = copy.deepcopy(family[0])
    trunk = PackedTrunk(model.model, graph_tokens=8192)
    expected = PackedTrunk(model.model)
    for _ in range(2):
        trunk.hidden([[5] * 500] * 10)
    assert list(trunk.graphs.captured) == [(5120, 128, 512)]
    few = [[6] * 420, [7] * 501] * 4
    many = [[7] * 27] * 125 + [[8] * 300]  # the graph has too few sequences for the padding
    for sequences, captured, padded_calls in ((few, 1, 1), (many, 1, 1), (many, 2, 1)):
        gradients = []
        for own in (trunk, expected):
            model.zero_grad()
            own.hidden(sequences).square().sum().backward()
            gradients.append(torch.cat([p.grad.flatten() for p in model.model.layers.parameters()]))
        torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-3)
        assert len(trunk.graphs.captured) == captured
        assert trunk.graphs.padded_calls.total() == padded_calls


def test_size_gets_its_own_graph_after_some_calls_with_a_larger_one(family):
    graphs = PackedTrunk(family[0].model, graph_tokens=8192).graphs
    graphs.captured |= dict.fromkeys([(5120, 256, 512), (5120, 128, 512), (6144, 128, 512)])
    for lengths, tokens, bounds in (
        ([400] * 10, 5120, 128),  # the smallest of three
        ([400] * 12, 5120, 128),  # its own
        ([30] * 130, 5120, 256),  # others have too few sequences
        ([400] * 7, 3072, 128),  # others have too many tokens
        ([600] * 7, 5120, 128),  # others have too short sequences
    ):
        all_lengths, _ = graphs.padded(lengths)
        assert (sum(all_lengths), len(all_lengths)) == (tokens, bounds)
    graphs.padded_calls.clear()
    tokens = [sum(graphs.padded([400] * 10)[0]) for _ in range(CALLS_BEFORE_CAPTURE + 1)]
    assert tokens == [5120] * CALLS_BEFORE_CAPTURE + [4096]


def test_graphs_do_not_change_the_update(tiny, tmp_path):
    """Neither that of the policy nor that of a critic."""
    weights = []
    for graph_tokens in (0, 8192):
        trainer = algorithms_training.Trainer(*copy.deepcopy(tiny), tmp_path, slots=8)
        trainer.graph_tokens = graph_tokens
        trainer.trunk = PackedTrunk(trainer.model.model, graph_tokens=graph_tokens)
        run = algorithms_plan.Run(
            "test", algorithms_plan.GUESS, "ppo", updates=3, episodes=8, rate=1e-3, evaluated=1
        )
        trainer.train(run)
        assert bool(trainer.trunk.graphs.captured) == bool(graph_tokens)
        weights.append(trainer.model.lm_head.weight.detach().clone())
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-5)


def test_untrained_critic_gives_whitened_returns(trainer):
    """Its values are 0, so GAE is the sum of (gamma * lambda)^k r."""
    trainer.restore(0)
    episodes = asyncio.run(
        trainer.play(algorithms_plan.GUESS, range(16), 1, None, algorithms_training.Clock())
    )
    critic = algorithms_model.Critic(trainer.model)
    optimizer = algorithms_model.Optimizer(critic, 0.0)
    whitened, loss = trainer.critic_advantages(episodes, critic, optimizer, 0.9)
    discount = 0.9 * 0.95
    expected = advantages(episodes, "rebn", gamma=discount)
    assert whitened == [pytest.approx(per_turn, abs=1e-6) for per_turn in expected]
    returns = [g for e in episodes for g in advantages([e], "reinforce", gamma=discount)[0]]
    assert loss == pytest.approx(sum(g * g for g in returns) / len(returns), rel=1e-5)


def test_critic_values_each_turn_before_its_first_token(trainer):
    """The reference evaluates one episode at a time, with GAE written out."""
    trainer.restore(0)
    episodes = asyncio.run(
        trainer.play(algorithms_plan.GUESS, range(16), 1, None, algorithms_training.Clock())
    )
    critic = algorithms_model.Critic(trainer.model)
    torch.nn.init.normal_(critic.head.weight, std=0.3, generator=torch.Generator().manual_seed(0))
    raw, errors = [], []
    for episode in episodes:
        (sequence,) = token_sequences(episode)
        hidden = critic.trunk(input_ids=torch.tensor([sequence.ids])).last_hidden_state[0]
        values = [critic.head(hidden[begin - 1]).item() for _, begin, _ in sequence.spans] + [0.0]
        gae, per_turn = 0.0, []
        for turn in reversed(range(len(episode.turns))):
            delta = episode.rewards[turn] + 0.9 * values[turn + 1] - values[turn]
            gae = delta + 0.9 * 0.95 * gae
            per_turn.insert(0, gae)
        raw.append(per_turn)
        errors += per_turn  # target - value is the advantage
    mean, std = fmean(errors), pstdev(errors)
    assert std > 0.05 and len({round(a, 3) for a in errors}) > 8
    optimizer = algorithms_model.Optimizer(critic, 0.0)
    whitened, loss = trainer.critic_advantages(episodes, critic, optimizer, 0.9)
    assert whitened == [
        pytest.approx([(a - mean) / std for a in per_turn], abs=1e-3) for per_turn in raw
    ]
    assert loss == pytest.approx(fmean(a * a for a in errors), rel=1e-3)


def test_warm_up_trains_on_the_format_of_an_answer_not_its_content(tiny):
    _, tokenizer = tiny
    settings = [algorithms_plan.GUESS, algorithms_plan.Setting("logic:Sample-v0")]
    sequences = algorithms_warm_up.warm_up_sequences(settings, tokenizer, 2)
    trained = [
        tokenizer.decode([i for i, m in zip(*sequence) if m], skip_special_tokens=False)
        for sequence in sequences
    ]
    assert all("\\boxed{" in text and any(c.isdigit() for c in text) for text in trained[:2])
    assert all(text.startswith("\\boxed{}") for text in trained[2:])


def test_plan_contains_all_comparisons():
    plan = algorithms_plan.plan()
    names = [run.name for run in plan]
    assert len(names) == len(set(names))
    main = {
        (run.setting.env, run.algorithm, run.seed) for run in plan if run.name.startswith("main/")
    }
    assert {a for _, a, _ in main} == {"reinforce", "rebn", "grpo", "ppo", "rloo", "reinforce++"}
    assert len({env for env, _, _ in main}) >= 4
    for algorithm in ("reinforce", "rebn", "grpo", "ppo"):
        for env in algorithms_plan.MAIN:
            assert sum((env, algorithm) == key[:2] for key in main) == algorithms_plan.SEEDS
    assert len({run.setting.env for run in plan if run.name.startswith("breadth/")}) == 24
    defaults = {name: p.default for name, p in signature(Reasoning).parameters.items()}
    last = defaults["seed"] + defaults["size"]
    assert algorithms_plan.OTHERS["seed"] >= last, "evaluation tasks overlap with training tasks"
    for run in plan:
        assert run.episodes % run.samples == 0
        assert (run.gamma == 1.0) or run.algorithm not in algorithms_plan.GROUPED


def test_run_requires_the_tuning_and_skips_finished_runs(tmp_path, monkeypatch, capfd):
    """The workers are processes, as on a GPU."""
    monkeypatch.setattr(algorithms, "prepare", lambda work: work.mkdir(parents=True, exist_ok=True))
    folders = ("--work", str(tmp_path / "work"), "--out", str(tmp_path / "out"))
    with pytest.raises(ConfigError, match="no run name starts with"):
        algorithms.main(["run", "nothing/", *folders])
    with pytest.raises(ConfigError, match="warm-up"):
        algorithms.main(["run", "main/", *folders])
    model, tokenizer = load_tiny()
    model.save_pretrained(tmp_path / "work" / "model")
    tokenizer.save_pretrained(tmp_path / "work" / "model")
    with pytest.raises(ConfigError, match="tuning"):
        algorithms.main(["run", "main/", *folders])
    assert algorithms.main(["run", "before/GuessTheNumber", *folders]) == 0
    (path,) = (tmp_path / "out").glob("*/*.json")
    assert json.loads(path.read_text())["run"]["name"] == "before/GuessTheNumber-v0-easy"
    shown = capfd.readouterr().out
    assert "1 runs in" in shown and "tokens/s, time: generation " in shown
    assert algorithms.main(["run", "before/GuessTheNumber", *folders]) == 0
    assert "0 runs in" in capfd.readouterr().out
    recorded = path.read_bytes()
    assert algorithms.main(["reproduce", "before/GuessTheNumber", *folders]) == 0
    shown = capfd.readouterr().out
    evaluation = json.loads(recorded)["evaluation"]
    score = f"{evaluation['return']:.3f}, {evaluation['success']:.1%}"
    lines = [line for line in shown.splitlines() if line.startswith("before/GuessTheNumber")]
    assert score in lines[-1]
    assert "weights before training: recorded " in shown
    assert "(the same)" in shown
    assert path.read_bytes() == recorded
    assert (tmp_path / "work" / "reproduced" / "before").is_dir()
    more = ["before/Hangman", "before/TowerofHanoi", "--lanes", "2"]
    assert algorithms.main(["run", *more, *folders]) == 0
    shown = capfd.readouterr().out
    assert "2 runs in" in shown and "updates/min" in shown and "generation" not in shown
    results = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("*/*.json")]
    assert sorted(result["lanes"] for result in results) == [1, 2, 2]
    with pytest.raises(ConfigError, match="no run name starts with"):
        algorithms.main(["reproduce", "nothing/", *folders])


def test_failure_of_one_run_does_not_end_the_other_lanes(tmp_path, monkeypatch, capfd):
    """Here, a damaged result of another run, and a file at the place of a folder."""

    async def train_run(self, run):
        await asyncio.sleep(0.1)
        evaluation = {"success": 0.0, "return": 0.0, "turns": 1.0}
        return {"evaluation": evaluation, "clock": {}, "curve": {}, "seconds": 1.0}

    monkeypatch.setattr(algorithms_training.Trainer, "train_run", train_run)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "other.json").write_text('{"model":')
    (tmp_path / "file").touch()
    names = ["good/0", "damaged/0", "file/0", "good/1", "good/2"]
    runs = queue.Queue()
    for name in names:
        runs.put(replace(short("rebn"), name=name))
    sizes = {"slots": 2, "room": 512, "context": 64, "workers": 1, "lanes": 2}
    settings = algorithms_workers.Workers(
        "tiny", tmp_path, tmp_path, **sizes, deadline=float("inf")
    )
    with pytest.raises(SystemExit, match="1"):
        algorithms_workers.run_worker(settings, runs)
    shown = capfd.readouterr()
    assert sorted(path.name for path in tmp_path.glob("good/*")) == ["0.json", "1.json", "2.json"]
    assert all(f"good/{i}: success 0.0%" in shown.out for i in range(3))
    assert all(f"{name}/0 failed: Traceback" in shown.err for name in ("damaged", "file"))


def test_program_starts_again_with_a_fixed_hash_seed(monkeypatch):
    started = []
    monkeypatch.setattr(algorithms.os, "execv", lambda *command: started.append(command))
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    algorithms.fix_hash_seed()
    assert started == [(sys.executable, [sys.executable, *sys.orig_argv[1:]])]
    algorithms.fix_hash_seed()  # it is 0 now
    assert len(started) == 1


def test_results_of_different_weights_are_not_mixed(tmp_path):
    run = next(run for run in algorithms_plan.plan() if run.name.startswith("before/Hangman"))
    other = tmp_path / "before" / "other.json"
    other.parent.mkdir()
    other.write_text('{"model": "0123"}')
    algorithms_workers.check_model_of_results(tmp_path, run, "0123")
    with pytest.raises(ConfigError, match="other.json started from the weights 0123, this run"):
        algorithms_workers.check_model_of_results(tmp_path, run, "4567")


def test_cell_name_selects_its_seeds_and_no_other_cell():
    cell = "main/GuessTheNumber-v0-easy-rebn"
    names = [run.name for run in algorithms_plan.selected_runs([cell])]
    assert sorted(names) == [f"{cell}-{seed}" for seed in range(5)], "not the undiscounted runs"
    assert [run.name for run in algorithms_plan.selected_runs([f"{cell}-3"])] == [f"{cell}-3"]
    assert len(algorithms_plan.selected_runs([f"{cell}-"])) == 10, "the beginning of two cells"
    assert len(algorithms_plan.selected_runs([])) == len(algorithms_plan.plan())


def test_selected_runs_have_the_order_of_the_names():
    later, earlier = algorithms_plan.plan()[5].name, algorithms_plan.plan()[2].name
    names = [run.name for run in algorithms_plan.selected_runs([later, earlier, later])]
    assert names == [later, earlier]


def test_comparison_of_several_runs_shows_means(tmp_path):
    for folder, returns in (("old", (0.2, 0.4)), ("new", (0.3, 0.5))):
        for seed, value in enumerate(returns):
            path = tmp_path / folder / "main" / f"x-{seed}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            evaluation = {"return": value, "success": value}
            facts = {"model": folder, "device": "CPU", "evaluation": evaluation}
            path.write_text(json.dumps(facts))
    names = ["main/x-0", "main/x-1", "main/x-2"]
    table = algorithms_reproduce.compared(names, tmp_path / "old", tmp_path / "new").splitlines()
    assert table[1].split() == ["main/x-0", "0.200,", "20.0%", "0.300,", "30.0%"]
    assert table[3].split() == ["mean", "of", "2", "0.300,", "30.0%", "0.400,", "40.0%"]
    assert table[4].endswith("0.141")
    assert "(different: the runs start from another model)" in table[5]
    assert "(the same)" in table[6]


def made_up_results():
    """Return a result for every run of the plan, with numbers that are easy to check."""
    results = {}
    returns = {"none": 0.0, "reinforce": 0.1, "rebn": 0.3}
    for run in algorithms_plan.plan():
        training = returns.get(run.algorithm, 0.2) + 0.01 * run.seed
        held_out = 0.0 if "syllogism" in run.name else training
        evaluation = {
            "success": held_out,
            "return": held_out,
            "return_std": 0.1,
            "turns": 3.0,
            "turns_to_solve": 2.0 + run.gamma,
        }
        evaluation |= {"tool_uses": 1.0, "tokens": 100, "commonest": 0.5, "failed": 0}
        rate = run.rate or 3e-5
        curve = {
            "return": [training * (2 if rate == 3e-5 else 1)] * run.updates,
            "tokens": [1000] * run.updates,
        }
        curve |= {
            "success": [float(update >= 20) for update in range(run.updates)],
            "apart": [0.01] * run.updates,
        }
        curve |= {
            "turns": [3.0] * run.updates,
            "grad_norm": [float(update >= 3) for update in range(run.updates)],
        }
        clock = {"generation": 5.0, "environment": 1.0, "update": 4.0, "tokens": 5000}
        results[run.name] = {
            "run": {**asdict(replace(run, rate=rate))},
            "evaluation": evaluation,
            "curve": curve,
            "seconds": 10.0,
            "clock": clock,
            "device": "a GPU",
            "torch": "2",
            "model": "m",
            "workers": 4,
        }
    return results


def test_tables_contain_the_expected_rows():
    known = made_up_results()
    main = algorithms_report.main_table(known)
    # 2.776 * 0.0158 / sqrt(5) = 0.0196
    assert "| REINFORCE + ReBN | 0.320 ± 0.020 | 32.0 ± 2.0% |  | 10% | 5 |" in main
    assert "| REINFORCE | 0.120 ± 0.020 | 12.0 ± 2.0% | lower (p = 0.008) | 10% | 5 |" in main
    assert "γ = 1 | 0.320 ± 0.020 | 32.0 ± 2.0% | not significantly different (p = 1.000)" in main
    assert "| RLOO | 0.200 | 20.0% |  | 10% | 1 |" in main
    assert algorithms_report.tests(known) == (
        "Of 14 tests, 12 have p < 0.05; 12 are significant at a false discovery rate of 10%, "
        "12 at 5% (Benjamini and Hochberg). "
        "ReBN without discount against GRPO: p = 0.01 on GuessTheNumber, 0.01 on Hangman."
    )
    breadth = algorithms_report.breadth(known)
    assert "| `rg:syllogism` | 0.000 | 0.000 | 0.000 | no signal at 135M |" in breadth
    assert "| `game:Wordle-v0-easy` | 0.000 | 0.100 | 0.300 | ReBN |" in breadth
    assert breadth.count("\n") == 25
    del known["breadth/Wordle-v0-easy-reinforce"]
    breadth = algorithms_report.breadth(known)
    assert "| `game:Wordle-v0-easy` | 0.000 |  | 0.300 | not run |" in breadth
    gamma = algorithms_report.gamma(known)
    row = "| 0.8 | 31.0 ± 2.5% | 3.000 ± 0.000 | 3.00, 3.00, 3.00 | 24, 24, 24 | 7% |"
    assert row in gamma
    assert "p = 1.000" in gamma
    assert "without | 0.0% | 1.00 | 30.0% | 1.00 |" in algorithms_report.tools(known)
    horizon = algorithms_report.horizon(known)
    assert "after 30k" in horizon
    assert "| before | 0.000 | 0.0% | 0k |  | 1 |" in horizon
    assert "| `6` | 0.310 ± 0.025 | 31.0 ± 2.5% | 30k |  | 3 |" in horizon
    assert "| `6,12,20@10` | 0.310 ± 0.025 | 31.0 ± 2.5% | 30k | 0.620 ± 0.050 | 3 |" in horizon
    row = "| alone, 256 episodes per update | 4 | 480 | 122880 | 2000 | 50% | 10% | 40% |"
    assert row in algorithms_report.speed(known)
    origin = algorithms_report.origin(known)
    assert origin.startswith("195 training runs (9 minutes in total) and 29 evaluations")
    assert "differ by 0.010 per token" in origin


def test_lanes_count_as_concurrent_runs_without_shares_of_time():
    alone = made_up_results()["speed/alone"]
    clock = {"generation": 95.0, "environment": 0.0, "update": 5.0, "tokens": 1000}
    with_lanes = {**alone, "clock": clock, "lanes": 3}

    def row(*results):
        return algorithms_report.speed(dict(enumerate(results))).splitlines()[-1].split(" | ")[1:]

    assert row(with_lanes) == ["12", "1440", "368640", "1200", "", "", " |"]
    # 10 s / 4 and 10 s / 12
    assert row(alone, with_lanes) == ["4, 12", "720", "184320", "1800", "50%", "10%", "40% |"]
    origin = algorithms_report.origin({"speed/alone": {**with_lanes, "seconds": 1440.0}})
    assert origin.startswith("1 training runs (2 minutes in total)")


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        # 2 of 70 permutations differ as much
        ([1, 2, 3, 4], [5, 6, 7, 8], "lower (p = 0.029)"),
        ([5, 6, 7, 9], [1, 2, 3, 8], "not significantly different (p = 0.143)"),  # 10 of 70
        ([5, 6, 7, 8, 9], [1, 2, 3, 4, 4.5], "higher (p = 0.008)"),
        ([5, 6, 9], [1, 2, 3, 4], "higher (p = 0.029)"),  # 1 of 35
        ([1, 2, 3], [5, 6, 7], ""),  # 2 of 20 at best
        ([1], [5, 6, 7, 8, 9], ""),
        ([], [5], ""),
        ([1, 1, 1, 1], [1, 1, 1, 1], "not significantly different (p = 1.000)"),
    ],
)
def test_verdict_uses_an_exact_permutation_test(ours, theirs, verdict):
    assert algorithms_report._verdict(ours, theirs) == verdict


@pytest.mark.parametrize(
    ("tokens", "expected"), [(5, 1.0), (10, 1.0), (29, 1.5), (30, 2.0), (99, 2.5)]
)
def test_return_after_reads_the_curve_at_a_token_budget(tokens, expected):
    curve = {"tokens": [10] * 4, "return": [1.0, 2.0, 3.0, 4.0]}
    assert algorithms_report._return_after(curve, tokens) == expected


def test_report_replaces_only_the_tables_of_a_page(tmp_path):
    out = tmp_path / "results"
    for name, result in made_up_results().items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / f"{name}.json").write_text(json.dumps(result))
    page = tmp_path / "page.md"
    page.write_text("words\n<!-- table gamma -->\nold\n<!-- end -->\nmore words\n")
    algorithms_report.report(out, [page], tmp_path)
    text = page.read_text()
    assert text.startswith("words\n<!-- table gamma -->\n| γ |")
    assert text.endswith("<!-- end -->\nmore words\n")
    assert "old" not in text
    for name in ("main", "sweeps"):
        assert (tmp_path / f"baselines_{name}.svg").stat().st_size > 10_000
    page.write_text("<!-- table nothing -->\n<!-- end -->")
    with pytest.raises(ConfigError, match="'nothing'"):
        algorithms_report.report(out, [page], tmp_path)


def test_tuned_returns_the_rate_of_the_best_tuning_run(tmp_path):
    for name, result in made_up_results().items():
        if name.startswith("tuning/"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / f"{name}.json").write_text(json.dumps(result))
    assert algorithms_plan.tuned(tmp_path) == dict.fromkeys(algorithms_plan.TUNED_AS, 3e-5)


def test_committed_results_match_the_plan():
    planned = {run.name: run for run in algorithms_plan.plan()}
    known = algorithms_report.read(algorithms_plan.RESULTS)
    assert set(known) == set(planned)
    rates = algorithms_plan.tuned(algorithms_plan.RESULTS)
    for name, result in known.items():
        run = planned[name]
        chosen = run if run.rate or not run.updates else replace(run, rate=rates[run.algorithm])
        # a setting that is newer than the result has the default that acts as before
        assert result["run"].items() <= json.loads(json.dumps(asdict(chosen))).items()


@pytest.fixture(scope="module")
def committed():
    return algorithms_report.read(algorithms_plan.RESULTS)


@pytest.fixture(scope="module")
def words():
    return " ".join(algorithms_report.PAGE.read_text(encoding="utf-8").split())


def evaluated(known, prefix, metric="return"):
    """Return a metric of the evaluation, by seed."""
    return [
        r["evaluation"][metric]
        for name, r in sorted(known.items())
        if name.rpartition("-")[0] == prefix
    ]


def test_page_states_the_measured_verdict_on_rebn(committed, words):
    rows = algorithms_report.breadth(committed).splitlines()[2:]
    verdicts = [row.split(" | ")[4] for row in rows]
    assert "on 1 of 24 ids" in words
    assert (len(verdicts), verdicts.count("REINFORCE") + verdicts.count("ReBN")) == (24, 1)
    hanoi = {
        kind: fmean(evaluated(committed, f"main/TowerofHanoi-v0-easy-{kind}"))
        for kind in ("rebn", "grpo")
    }
    assert f"on TowerofHanoi GRPO is {hanoi['grpo'] - hanoi['rebn']:.2f} higher" in words
    sums = {
        seed: committed[f"main/rg-chain-sum-grpo-{seed}"] for seed in range(algorithms_plan.SEEDS)
    }
    idle = {
        seed: r["curve"]["grad_norm"].count(0.0) / r["run"]["updates"] for seed, r in sums.items()
    }
    assert "two of the five GRPO runs (seeds 2 and 4)" in words and "end below 0.14" in words
    assert [seed for seed, share in idle.items() if share > 0.4] == [2, 4]
    assert [seed for seed, r in sums.items() if r["evaluation"]["return"] < 0.14] == [2, 4]


def test_page_states_the_measured_verdict_on_discounts(committed, words):
    undiscounted = evaluated(committed, "gamma/1", "turns")
    discounted = [
        turns
        for gamma in ("0.95", "0.9", "0.8")
        for turns in evaluated(committed, f"gamma/{gamma}", "turns")
    ]
    assert (len(undiscounted), len(discounted)) == (3, 9)
    assert f"in {min(undiscounted):.1f} to {max(undiscounted):.1f} turns" in words
    assert f"in {min(discounted):.1f} to {max(discounted):.1f}" in words


def test_page_states_the_measured_verdict_on_tools(committed, words):
    success = {
        name: r["evaluation"]["success"]
        for name, r in committed.items()
        if name.startswith("tools/")
    }
    with_tool = [
        f"{100 * success[f'tools/{task}-tools-after']:.0f}" for task in ("maths", "search")
    ]
    assert f"from 0 % without a tool to {' and '.join(with_tool)} % with it" in words
    assert [share for name, share in success.items() if "-none-" in name] == [0.0] * 4


def test_page_states_the_measured_verdict_on_horizons(committed, words):
    short, growing, long = (
        evaluated(committed, f"horizon/{name}") for name in ("fixed-6", "scaling", "fixed-20")
    )
    assert "above 6 and below 20 with each of three seeds" in words
    assert all(a < b < c for a, b, c in zip(short, growing, long)) and len(growing) == 3
    curves = {
        name: [committed[f"horizon/{name}-{seed}"]["curve"] for seed in range(3)]
        for name in ("scaling", "fixed-20")
    }
    budget = min(sum(curve["tokens"]) for curve in curves["scaling"])
    at_budget = [
        [algorithms_report._return_after(curve, budget) for curve in seeds]
        for seeds in curves.values()
    ]
    assert all(a < b for a, b in zip(*at_budget))


@pytest.mark.parametrize(
    "page",
    [algorithms_report.PAGE, algorithms_report.TRL_PAGE],
    ids=["baselines", "trl"],
)
def test_page_contains_the_tables_of_the_committed_results(page):
    text = page.read_text(encoding="utf-8")
    assert text.count("<!-- table ") >= 1
    assert (
        algorithms_report.with_tables(text, algorithms_report.read(algorithms_plan.RESULTS)) == text
    )
