"""The benchmark of algorithms on a CPU: its engine samples what the model says, its runs are those of the plan, its tables are
made of results. What the algorithms are worth is measured on a GPU, by the benchmark itself."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from inspect import signature
from statistics import fmean, pstdev

import pytest
import torch
from project import ROOT

from gem_core import (
    Limits,
    Message,
    Renderer,
    Rollout,
    Sampling,
    advantages,
    tasks_for,
    token_sequences,
)
from gem_core.errors import ConfigError, PolicyError
from gem_core.policies import TransformersPolicy, load_tiny
from gem_envs.datasets.reasoning import Reasoning

BENCHMARKS = ROOT / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import algorithms  # noqa: E402
import algorithms_report  # noqa: E402
from continuous import ContinuousPolicy  # noqa: E402

EASY = "game:GuessTheNumber-v0-easy"


@pytest.fixture(scope="module")
def tiny():
    torch.set_num_threads(1)
    return load_tiny()


@pytest.fixture
def policy(tiny):
    made = ContinuousPolicy(*tiny, slots=8, context=512)
    yield made
    made.close()


@pytest.fixture(scope="module")
def trainer(tiny, tmp_path_factory):
    made = algorithms.Trainer(*algorithms.load("tiny"), tmp_path_factory.mktemp("work"), slots=16)
    yield made
    made.policy.close()


def play(policy, tokenizer, count=24, temperature=1.0, wrappers=""):
    sampling, limits = Sampling(temperature=temperature, max_tokens=12), Limits(max_context=500)
    with Rollout(
        policy, Renderer(tokenizer), sampling=sampling, limits=limits, concurrency=20
    ) as engine:
        return engine.run_batch(tasks_for(EASY, range(count), wrappers=wrappers))


def actions(episodes):
    return [[turn.action_ids for turn in episode.turns] for episode in episodes]


@pytest.mark.parametrize("wrappers", ["", "concat"])
def test_greedy_play_is_that_of_the_plain_policy(tiny, policy, wrappers):
    """More episodes than slots, turns of all lengths, and, with `concat`, a context that is written anew every turn."""
    found = play(policy, tiny[1], temperature=0.0, wrappers=wrappers)
    assert actions(found) == actions(
        play(TransformersPolicy(*tiny), tiny[1], temperature=0.0, wrappers=wrappers)
    )


def test_logprobs_are_those_of_a_full_forward_pass(tiny, policy):
    model, tokenizer = tiny
    checked = 0
    for episode in play(policy, tokenizer):
        assert episode.failure is None
        for view in token_sequences(episode):
            ids = torch.tensor([view.ids])
            with torch.no_grad():
                said = (
                    model(ids)
                    .logits[0, :-1]
                    .float()
                    .log_softmax(-1)
                    .gather(-1, ids[0, 1:, None])[:, 0]
                )
            for i, trained in enumerate(view.mask):
                if trained:
                    assert view.logprobs[i] == pytest.approx(said[i - 1].item(), abs=1e-4)
                    checked += 1
    assert checked > 200


def test_requests_of_two_temperatures_do_not_mix(tiny, policy):
    """Greedy turns stay greedy beside hot ones."""
    _, tokenizer = tiny
    prompt = Renderer(tokenizer).start(
        [Message("user", "I am thinking of a whole number between 1 and 10.")]
    )
    cold, hot = Sampling(temperature=0.0, max_tokens=8), Sampling(temperature=5.0, max_tokens=8)

    async def many():
        return await asyncio.gather(
            *(policy.generate(prompt, cold if i % 2 else hot) for i in range(12))
        )

    found = asyncio.run(many())
    assert len({g.ids for g in found[1::2]}) == 1
    assert all(p == 0.0 for g in found[1::2] for p in g.logprobs)
    assert len({g.ids for g in found[::2]}) == 6


def test_new_weights_are_played_after_a_refresh_and_not_before(policy, tiny):
    model, tokenizer = tiny
    before = actions(play(policy, tokenizer, temperature=0.0))
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
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
        model.load_state_dict(kept)


@pytest.mark.parametrize(
    ("sampling", "prompt", "said"),
    [
        (Sampling(top_k=5), [1], "top_k"),
        (Sampling(stop=("x",)), [1], "stop"),
        (Sampling(seed=1), [1], "seed"),
        (Sampling(), [], "no ids"),
        (Sampling(), [1] * 600, "context of 512"),
    ],
)
def test_what_the_engine_cannot_do_is_refused(policy, sampling, prompt, said):
    with pytest.raises((ConfigError, PolicyError), match=said):
        asyncio.run(policy.generate(prompt, sampling))


def test_an_engine_that_breaks_says_so_and_goes_on(policy, tiny, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(policy._decoder, "decode", lambda *_: 1 / 0)
        episodes = play(policy, tiny[1], count=4)
        assert all("ZeroDivisionError" in str(e.failure) for e in episodes)
    assert all(e.failure is None for e in play(policy, tiny[1], count=4))


def short(algorithm, **more):
    given = {"updates": 2, "episodes": 32, "rate": 1e-3, "evaluated": 16, **more}
    return algorithms.Run(f"test/{algorithm}", algorithms.GUESS, algorithm, **given)


@pytest.mark.parametrize("algorithm", list(algorithms.TUNED_AS))
def test_every_algorithm_trains(trainer, algorithm):
    result = trainer.train(short(algorithm))
    assert len(result["curve"]["success"]) == 2
    assert ("value_loss" in result["curve"]) == (algorithm == "ppo")
    assert min(result["curve"]["grad_norm"]) > 0
    assert max(result["curve"]["apart"]) < 1e-3
    assert result["evaluation"]["failed"] == 0
    assert 1 / 16 <= result["evaluation"]["commonest"] <= 1
    json.dumps(result)


def test_every_run_begins_from_the_same_weights(trainer):
    trainer.train(short("rebn", rate=1e-2))
    moved = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    trainer.train(short("rebn", updates=0))
    assert any(not torch.equal(moved[name], tensor) for name, tensor in trainer.base.items())
    assert all(
        torch.equal(trainer.model.state_dict()[name], tensor)
        for name, tensor in trainer.base.items()
    )


def test_the_update_follows_the_gradient_of_the_stated_loss(trainer):
    """-1/Z * sum of A * log pi, however the rows are cut into parts."""
    model = trainer.model
    model.load_state_dict(trainer.base)
    trainer.policy.refresh()
    episodes = trainer.play(algorithms.GUESS, range(24), 1, None, algorithms.Clock())
    credit = advantages(episodes, "rebn", gamma=0.9)
    rows = [
        (view, view.broadcast(turns))
        for e, turns in zip(episodes, credit)
        for view in token_sequences(e)
    ]
    model.zero_grad()
    loss = 0.0
    for view, spread in rows:
        ids = torch.tensor([view.ids])
        logp = model(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        loss = loss - (logp * torch.tensor(spread[1:]) * torch.tensor(view.mask[1:])).sum()
    (loss / sum(sum(view.mask) for view, _ in rows)).backward()
    wanted = torch.cat([p.grad.flatten() for p in model.parameters()])

    class Look:
        def step(self):
            return torch.cat([p.grad.flatten() for p in model.parameters()])

    model.zero_grad()
    found, apart = trainer.update(episodes, credit, Look())
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)
    assert apart < 1e-4, "sampler and trainer are one model"
    with torch.no_grad():
        model.model.norm.weight.mul_(1.5)
    assert trainer.update(episodes, credit, Look())[1] > 1e-2


def test_steps_that_bfloat16_cannot_hold_are_not_lost(tiny):
    model, _ = load_tiny()
    algorithms.hasten(model, torch.bfloat16)
    weight = model.model.norm.weight
    optimizer = algorithms.Optimizer(model, 1e-3)
    for step in range(8):
        weight.grad = torch.ones_like(weight)
        norm = optimizer.step(0.0 if step == 0 else 1.0)
        assert norm == pytest.approx(len(weight) ** 0.5, rel=1e-3)
    kept = next(copied for copied, p in zip(optimizer.copies, optimizer.parameters) if p is weight)
    assert weight.dtype == torch.bfloat16
    torch.testing.assert_close(
        kept - tiny[0].model.norm.weight, torch.full_like(kept, -7e-3), rtol=0.1, atol=4e-3
    )
    torch.testing.assert_close(weight, kept.bfloat16())


def test_a_hastened_model_says_the_same(tiny):
    model, _ = load_tiny()
    ids = torch.arange(5, 40)[None]
    wanted = model(ids).logits
    algorithms.hasten(model, torch.float32)
    found = model(ids).logits
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    found.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_a_critic_that_knows_nothing_gives_whitened_returns(trainer):
    """Its values are 0 at first, so that GAE is the sum of (gamma * lambda)^k r."""
    trainer.model.load_state_dict(trainer.base)
    episodes = trainer.play(algorithms.GUESS, range(16), 1, None, algorithms.Clock())
    critic = algorithms.Critic(trainer.model)
    credit, loss = trainer.criticise(episodes, critic, algorithms.Optimizer(critic, 0.0), 0.9)
    assert credit == [
        pytest.approx(row, abs=1e-6)
        for row in advantages(episodes, "rebn", gamma=0.9 * algorithms.LAMBDA)
    ]
    returns = [
        g for e in episodes for g in advantages([e], "reinforce", gamma=0.9 * algorithms.LAMBDA)[0]
    ]
    assert loss == pytest.approx(sum(g * g for g in returns) / len(returns), rel=1e-5)


def test_a_critic_values_each_turn_at_its_beginning(trainer):
    """Against one episode at a time, and GAE written out."""
    trainer.model.load_state_dict(trainer.base)
    trainer.policy.refresh()
    episodes = trainer.play(algorithms.GUESS, range(16), 1, None, algorithms.Clock())
    critic = algorithms.Critic(trainer.model)
    torch.nn.init.normal_(critic.head.weight, std=0.3, generator=torch.Generator().manual_seed(0))
    raw, errors = [], []
    for episode in episodes:
        (view,) = token_sequences(episode)
        hidden = critic.trunk(input_ids=torch.tensor([view.ids])).last_hidden_state[0]
        values = [critic.head(hidden[begin - 1]).item() for _, begin, _ in view.spans] + [0.0]
        carried, row = 0.0, []
        for turn in reversed(range(len(episode.turns))):
            carried = (
                episode.rewards[turn]
                + 0.9 * values[turn + 1]
                - values[turn]
                + 0.9 * algorithms.LAMBDA * carried
            )
            row.insert(0, carried)
        raw.append(row)
        errors += row  # target less value: the advantage itself
    mean, std = fmean(errors), pstdev(errors)
    assert std > 0.05 and len({round(a, 3) for a in errors}) > 8
    credit, loss = trainer.criticise(episodes, critic, algorithms.Optimizer(critic, 0.0), 0.9)
    assert credit == [pytest.approx([(a - mean) / std for a in row], abs=1e-3) for row in raw]
    assert loss == pytest.approx(fmean(a * a for a in errors), rel=1e-3)


def test_a_lesson_teaches_the_frame_of_an_answer_and_not_its_content(tiny):
    _, tokenizer = tiny
    rows = algorithms.lesson_rows(
        [algorithms.GUESS, algorithms.Setting("logic:Sample-v0")], tokenizer, 2
    )
    games, questions = rows[:2], rows[2:]
    taught = [
        tokenizer.decode([i for i, m in zip(*row) if m], skip_special_tokens=False)
        for row in (*games, *questions)
    ]
    assert all("\\boxed{" in text and any(c.isdigit() for c in text) for text in taught[:2])
    assert all(text.startswith("\\boxed{}") for text in taught[2:])


def test_the_plan_has_what_is_compared():
    plan = algorithms.plan()
    names = [run.name for run in plan]
    assert len(names) == len(set(names))
    main = {
        (run.setting.env, run.algorithm, run.seed) for run in plan if run.name.startswith("main/")
    }
    assert {a for _, a, _ in main} == {"reinforce", "rebn", "grpo", "ppo", "rloo", "reinforce++"}
    assert len({env for env, _, _ in main}) >= 4
    for algorithm in ("reinforce", "rebn", "grpo", "ppo"):
        for env in algorithms.MAIN:
            assert sum((env, algorithm) == found[:2] for found in main) == algorithms.SEEDS
    assert len({run.setting.env for run in plan if run.name.startswith("breadth/")}) == 24
    own = {name: given.default for name, given in signature(Reasoning).parameters.items()}
    assert algorithms.OTHERS["seed"] >= own["seed"] + own["size"], "task i is made of seed + i"
    for run in plan:
        assert run.episodes % run.samples == 0
        assert (run.gamma == 1.0) or run.algorithm not in algorithms.GROUPED


def test_runs_are_made_once_and_wait_for_their_tuning(tmp_path, monkeypatch, capfd):
    """In processes of their own, as on a GPU; a second call finds nothing left to do."""
    monkeypatch.setattr(algorithms, "prepare", lambda work: work.mkdir(parents=True, exist_ok=True))
    folders = ("--work", str(tmp_path / "work"), "--out", str(tmp_path / "out"))
    with pytest.raises(ConfigError, match="no run's name"):
        algorithms.main(["run", "nothing/", *folders])
    with pytest.raises(ConfigError, match="lesson"):
        algorithms.main(["run", "main/", *folders])
    model, tokenizer = load_tiny()
    model.save_pretrained(tmp_path / "work" / "model")
    tokenizer.save_pretrained(tmp_path / "work" / "model")
    with pytest.raises(ConfigError, match="tuning"):
        algorithms.main(["run", "main/", *folders])
    assert algorithms.main(["run", "before/GuessTheNumber", *folders]) == 0
    (path,) = (tmp_path / "out").glob("*/*.json")
    assert json.loads(path.read_text())["run"]["name"] == "before/GuessTheNumber-v0-easy"
    assert "1 runs in" in capfd.readouterr().out
    assert algorithms.main(["run", "before/GuessTheNumber", *folders]) == 0
    assert "0 runs in" in capfd.readouterr().out


def invented():
    """A result for every run of the plan, with numbers that can be checked by hand."""
    found = {}
    for run in algorithms.plan():
        better = {"none": 0.0, "reinforce": 0.1, "rebn": 0.3}.get(
            run.algorithm, 0.2
        ) + 0.01 * run.seed
        moved = 0.0 if "syllogism" in run.name else better
        evaluation = {
            "success": moved,
            "return": moved,
            "return_std": 0.1,
            "turns": 3.0,
            "turns_to_solve": 2.0 + run.gamma,
        }
        evaluation |= {"tool_uses": 1.0, "tokens": 100, "commonest": 0.5, "failed": 0}
        rate = run.rate or 3e-5
        curve = {
            "return": [better * (2 if rate == 3e-5 else 1)] * run.updates,
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
        found[run.name] = {
            "run": {**algorithms.asdict(replace(run, rate=rate))},
            "evaluation": evaluation,
            "curve": curve,
            "seconds": 10.0,
            "clock": clock,
            "device": "a GPU",
            "torch": "2",
            "model": "m",
            "workers": 4,
        }
    return found


def test_the_tables_are_made_of_the_results():
    known = invented()
    main = algorithms_report.main_table(known)
    assert (
        "| REINFORCE + ReBN | 0.320 ± 0.020 | 32.0 ± 2.0% |  | 10% | 5 |" in main
    )  # 2.776 * 0.0158 / sqrt(5) = 0.0196
    assert "| REINFORCE | 0.120 ± 0.020 | 12.0 ± 2.0% | lower (p = 0.008) | 10% | 5 |" in main
    assert (
        "| REINFORCE + ReBN, γ = 1 | 0.320 ± 0.020 | 32.0 ± 2.0% | not told apart (p = 1.000) | 10% | 5 |"
        in main
    )
    assert "| RLOO | 0.200 | 20.0% |  | 10% | 1 |" in main
    assert algorithms_report.tests(known) == (
        "Of 14 tests, 12 have p < 0.05; 12 hold at a false discovery rate of 10%, 12 at 5% (Benjamini and Hochberg). "
        "ReBN without discount against GRPO: p = 0.01 on GuessTheNumber, 0.01 on Hangman."
    )
    breadth = algorithms_report.breadth(known)
    assert "| `rg:syllogism` | 0.000 | 0.000 | 0.000 | no signal at 135M |" in breadth
    assert "| `game:Wordle-v0-easy` | 0.000 | 0.100 | 0.300 | ReBN |" in breadth
    assert breadth.count("\n") == 25
    del known["breadth/Wordle-v0-easy-reinforce"]
    assert "| `game:Wordle-v0-easy` | 0.000 |  | 0.300 | not run |" in algorithms_report.breadth(
        known
    )
    gamma = algorithms_report.gamma(known)
    assert (
        "| 0.8 | 31.0 ± 2.5% | 3.000 ± 0.000 | 3.00, 3.00, 3.00 | 24, 24, 24 | 7% |" in gamma
        and "p = 1.000" in gamma
    )
    assert "without | 0.0% | 1.00 | 30.0% | 1.00 |" in algorithms_report.tools(known)
    horizon = algorithms_report.horizon(known)
    assert "| before | 0.000 | 0.0% | 0k |  | 1 |" in horizon
    assert (
        "after 30k" in horizon and "| `6` | 0.310 ± 0.025 | 31.0 ± 2.5% | 30k |  | 3 |" in horizon
    )
    assert "| `6,12,20@10` | 0.310 ± 0.025 | 31.0 ± 2.5% | 30k | 0.620 ± 0.050 | 3 |" in horizon
    assert (
        "| alone, 256 episodes an update | 4 | 480 | 122880 | 2000 | 50% | 10% | 40% |"
        in algorithms_report.speed(known)
    )
    origin = algorithms_report.origin(known)
    assert (
        origin.startswith("195 trainings, 9 minutes of them, and 29 evaluations")
        and "differ by 0.010 a token" in origin
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "told"),
    [
        (
            [1, 2, 3, 4],
            [5, 6, 7, 8],
            "lower (p = 0.029)",
        ),  # 2 of 70 ways to deal them out are as far apart
        ([5, 6, 7, 9], [1, 2, 3, 8], "not told apart (p = 0.143)"),  # 10 of 70
        ([5, 6, 7, 8, 9], [1, 2, 3, 4, 4.5], "higher (p = 0.008)"),
        ([5, 6, 9], [1, 2, 3, 4], "higher (p = 0.029)"),  # 1 of 35
        ([1, 2, 3], [5, 6, 7], ""),  # 2 of 20 at best
        ([1], [5, 6, 7, 8, 9], ""),
        ([], [5], ""),
        ([1, 1, 1, 1], [1, 1, 1, 1], "not told apart (p = 1.000)"),
    ],
)
def test_means_are_told_apart_by_all_ways_to_deal_out_the_seeds(ours, theirs, told):
    assert algorithms_report._told_apart(ours, theirs) == told


@pytest.mark.parametrize(
    ("tokens", "found"), [(5, 1.0), (10, 1.0), (29, 1.5), (30, 2.0), (99, 2.5)]
)
def test_a_return_is_read_where_so_many_tokens_were_sampled(tokens, found):
    assert (
        algorithms_report._after({"tokens": [10] * 4, "return": [1.0, 2.0, 3.0, 4.0]}, tokens)
        == found
    )


def test_a_page_keeps_its_words_and_gets_new_tables(tmp_path):
    known = invented()
    out = tmp_path / "results"
    for name, result in known.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / f"{name}.json").write_text(json.dumps(result))
    page = tmp_path / "page.md"
    page.write_text("words\n<!-- table gamma -->\nold\n<!-- end -->\nmore words\n")
    algorithms_report.report(out, [page], tmp_path)
    text = page.read_text()
    assert (
        text.startswith("words\n<!-- table gamma -->\n| γ |")
        and text.endswith("<!-- end -->\nmore words\n")
        and "old" not in text
    )
    assert all(
        (tmp_path / f"baselines_{name}.svg").stat().st_size > 10_000 for name in ("main", "sweeps")
    )
    page.write_text("<!-- table nothing -->\n<!-- end -->")
    with pytest.raises(ConfigError, match="'nothing'"):
        algorithms_report.report(out, [page], tmp_path)


def test_the_rate_is_that_of_the_best_tuning_run(tmp_path):
    for name, result in invented().items():
        if name.startswith("tuning/"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / f"{name}.json").write_text(json.dumps(result))
    assert algorithms.tuned(tmp_path) == dict.fromkeys(algorithms.TUNED_AS, 3e-5)


def test_the_committed_results_are_of_runs_as_they_are_planned():
    planned = {run.name: run for run in algorithms.plan()}
    known = algorithms_report.read(algorithms.RESULTS)
    assert set(known) == set(planned)
    rates = algorithms.tuned(algorithms.RESULTS)
    for name, result in known.items():
        run = planned[name]
        chosen = run if run.rate or not run.updates else replace(run, rate=rates[run.algorithm])
        assert result["run"] == json.loads(json.dumps(algorithms.asdict(chosen)))


@pytest.fixture(scope="module")
def committed():
    return algorithms_report.read(algorithms.RESULTS)


@pytest.fixture(scope="module")
def words():
    return " ".join(algorithms_report.PAGE.read_text(encoding="utf-8").split())


def evaluated(known, beginning, what="return"):
    """By seed."""
    return [
        r["evaluation"][what]
        for name, r in sorted(known.items())
        if name.rpartition("-")[0] == beginning
    ]


def test_the_verdict_on_rebn_is_what_was_measured(committed, words):
    further = [row.split(" | ")[4] for row in algorithms_report.breadth(committed).splitlines()[2:]]
    assert "told apart on 1 of 24 ids" in words
    assert (len(further), further.count("REINFORCE") + further.count("ReBN")) == (24, 1)
    hanoi = {
        kind: fmean(evaluated(committed, f"main/TowerofHanoi-v0-easy-{kind}"))
        for kind in ("rebn", "grpo")
    }
    assert f"on TowerofHanoi GRPO is {hanoi['grpo'] - hanoi['rebn']:.2f} higher" in words
    sums = {seed: committed[f"main/rg-chain-sum-grpo-{seed}"] for seed in range(algorithms.SEEDS)}
    idle = {
        seed: r["curve"]["grad_norm"].count(0.0) / r["run"]["updates"] for seed, r in sums.items()
    }
    assert "two of the five GRPO runs (seeds 2 and 4)" in words and "end below 0.14" in words
    assert [seed for seed, share in idle.items() if share > 0.4] == [2, 4]
    assert [seed for seed, r in sums.items() if r["evaluation"]["return"] < 0.14] == [2, 4]


def test_the_verdict_on_discounts_is_what_was_measured(committed, words):
    patient = evaluated(committed, "gamma/1", "turns")
    hasty = [
        turns
        for gamma in ("0.95", "0.9", "0.8")
        for turns in evaluated(committed, f"gamma/{gamma}", "turns")
    ]
    assert (len(patient), len(hasty)) == (3, 9)
    assert (
        f"in {min(patient):.1f} to {max(patient):.1f} turns, with less in {min(hasty):.1f} to {max(hasty):.1f}"
        in words
    )


def test_the_verdict_on_tools_is_what_was_measured(committed, words):
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


def test_the_verdict_on_horizons_is_what_was_measured(committed, words):
    short, grown, long = (
        evaluated(committed, f"horizon/{name}") for name in ("fixed-6", "scaling", "fixed-20")
    )
    assert "above 6 and below 20 with each of three seeds" in words
    assert all(a < b < c for a, b, c in zip(short, grown, long)) and len(grown) == 3
    budget = min(sum(committed[f"horizon/scaling-{seed}"]["curve"]["tokens"]) for seed in range(3))
    so_far = [
        [
            algorithms_report._after(committed[f"horizon/{name}-{i}"]["curve"], budget)
            for i in range(3)
        ]
        for name in ("scaling", "fixed-20")
    ]
    assert all(a < b for a, b in zip(*so_far))


@pytest.mark.parametrize(
    "page",
    [algorithms_report.PAGE, algorithms_report.TRL_PAGE, algorithms_report.VERL_PAGE],
    ids=["baselines", "trl", "verl"],
)
def test_a_page_holds_what_the_committed_results_say(page):
    text = page.read_text(encoding="utf-8")
    assert text.count("<!-- table ") >= 1
    assert algorithms_report.filled(text, algorithms_report.read(algorithms.RESULTS)) == text
