"""Whole runs with the real client on the local server: resume, pipelining, failing episodes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from worlds import ECHO, MOODY, Echo

from gem_core import Env
from gem_core.errors import ConfigError, EnvError
from gem_core.records.file import read_episodes
from gem_core.training.metrics_file import read_metrics
from gem_core.types import Episode, Sampling
from gem_tinker import train
from gem_tinker.local_server import LocalServer
from gem_tinker.rollout import EnginePolicy
from gem_tinker.trainer import GemTinkerTrainer

Make = Callable[..., Any]


def recorded(folder: Path) -> list[Episode]:
    return list(read_episodes(folder / "episodes.jsonl"))


def lora(server: LocalServer, trainer: GemTinkerTrainer) -> dict[str, Any]:
    model = server.service.trainings[trainer.client.model_id].model
    return {name: value.detach().clone() for name, value in model.lora.items()}


def distance(a: dict[str, Any], b: dict[str, Any]) -> float:
    return float(sum((a[name] - b[name]).abs().sum() for name in a))


def test_run_records_what_it_trained(
    make_config: Make, make_settings: Make, server: LocalServer, tmp_path: Path
) -> None:
    server.service.received.clear()
    trainer = train(make_config(gamma=0.9), make_settings(samples=2))
    assert trainer.updates == 2
    metrics, episodes = read_metrics(tmp_path), recorded(tmp_path)
    assert [line["step"] for line in metrics] == [0, 1]
    assert [line["episodes"] for line in metrics] == [8, 8]
    assert all(line["grad_norm"] > 0 for line in metrics)
    assert all(line["logprob_gap"] < 1e-4 for line in metrics)
    assert [e.final_info["update"] for e in episodes] == [0] * 8 + [1] * 8
    assert {t.versions for e in episodes[8:] for t in e.turns} == {(1, 1)}
    # The server received the recorded ids, logprobs and advantages, and nothing else.
    first, _ = server.service.received
    for i, episode in enumerate(episodes[:8]):
        ids = [*episode.prompt_ids(len(episode.turns) - 1), *episode.turns[-1].action_ids]
        assert [*first.ids[i].tolist(), int(first.inputs["target_tokens"][i][-1])] == ids
        expected = [
            pytest.approx(advantage, abs=1e-6)
            for turn, advantage in zip(episode.turns, episode.final_info["advantages"])
            for _ in turn.action_ids
        ]
        sampled = [p for turn in episode.turns for p in turn.logprobs or ()]
        trained = first.inputs["logprobs"][i] != 0
        assert first.inputs["advantages"][i][trained].tolist() == expected
        assert first.inputs["logprobs"][i][trained].tolist() == pytest.approx(sampled)
        assert not first.inputs["advantages"][i][~trained].any()


@pytest.mark.setting("Growing horizon", "works")
@pytest.mark.setting("Resume", "works")
def test_resumed_run_equals_a_run_without_a_break(
    make_config: Make, make_settings: Make, server: LocalServer, tmp_path: Path
) -> None:
    """Seeds, horizon, sampling, weights and Adam's momentum continue."""

    def run(name: str, *updates: int) -> GemTinkerTrainer:
        folder = tmp_path / name
        files = {"record": f"{folder}/episodes.jsonl", "metrics": f"{folder}/metrics.jsonl"}
        for total in updates:
            config = make_config(horizon="1,3@2", **files)
            trainer = train(config, make_settings(updates=total, out=str(folder), save_every=2))
        return trainer

    whole, parts = run("whole", 4), run("parts", 2, 4)
    new = GemTinkerTrainer(make_config(), make_settings(out=str(tmp_path / "new")))
    start, end, resumed_end = (lora(server, trainer) for trainer in (new, whole, parts))
    # Adam changes a weight by its rate even if its gradient is close to 0, with either sign
    assert distance(end, resumed_end) < 0.02 * distance(start, end)
    one, two = recorded(tmp_path / "whole"), recorded(tmp_path / "parts")
    assert [e.seed for e in one] == [e.seed for e in two]
    assert [t.action for e in one for t in e.turns] == [t.action for e in two for t in e.turns]
    assert len({e.seed for e in one[:12]}) == 12, "a pass over the seeds plays each once"
    assert max(len(e.turns) for e in two[:8]) == 1 < max(len(e.turns) for e in two[8:])
    assert [line["step"] for line in read_metrics(tmp_path / "parts")] == [0, 1, 2, 3]
    saved = json.loads((tmp_path / "parts" / "checkpoint.json").read_text())
    assert saved["updates"] == 4 and saved["sampler_path"].startswith("tinker://")


def test_resume_with_other_settings_is_rejected(make_config: Make, make_settings: Make) -> None:
    train(make_config(), make_settings(updates=1))
    with pytest.raises(ConfigError, match="has 1 updates, and updates=1, the total, is not more"):
        train(make_config(), make_settings(updates=1))
    for settings, fields, message in (
        ({"rank": 8}, {}, "was written with rank=4, but this run has 8"),
        ({"batch_size": 6}, {}, "was written with batch_size=4, but this run has 6"),
        ({"samples": 2}, {}, "was written with samples=1, but this run has 2"),
        ({"seed": 7}, {}, "was written with seed=0, but this run has 7"),
        ({}, {"seeds": 8}, "was written with seeds=.*use the same, or another folder"),
        ({}, {"env_id": MOODY}, f"was written with env_id='{ECHO}', but this run has '{MOODY}'"),
    ):
        with pytest.raises(ConfigError, match=message):
            train(make_config(**fields), make_settings(updates=2, **settings))


@pytest.mark.setting("Asynchronous training", "works")
def test_one_step_off_plays_with_the_weights_before_the_update(
    make_config: Make, make_settings: Make, tmp_path: Path
) -> None:
    settings = make_settings(updates=4, one_step_off=True, loss="ppo", substeps=2)
    train(make_config(), settings)
    episodes = recorded(tmp_path)
    versions = [{t.versions for e in episodes[i : i + 4] for t in e.turns} for i in (0, 4, 8, 12)]
    assert versions == [{(0, 0)}, {(0, 0)}, {(1, 1)}, {(2, 2)}]
    assert [e.final_info["update"] for e in episodes[::4]] == [0, 1, 2, 3]


def test_error_during_an_update_ends_the_batch_that_is_being_played(
    make_config: Make, make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = GemTinkerTrainer(make_config(), make_settings(updates=9, one_step_off=True))
    playing = threading.Event()

    def wait_in_reset(env: Env, options: Any) -> Any:
        playing.set()
        time.sleep(0.2)
        return "", {}

    def fail(rows: Any) -> Any:
        assert playing.wait(60)
        raise ConnectionError("the service is gone")

    play = trainer._play

    def slow(update: int) -> list[Episode]:
        if update:
            monkeypatch.setattr(Echo, "on_reset", wait_in_reset)
        return play(update)

    monkeypatch.setattr(trainer, "_play", slow)
    monkeypatch.setattr(trainer, "_train_on", fail)
    with pytest.raises(ConnectionError, match="the service is gone"):
        trainer.train()


def test_all_requests_of_an_update_are_sent_before_a_result_is_awaited(
    make_config: Make, make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = GemTinkerTrainer(make_config(), make_settings(updates=1, substeps=2))
    calls: list[str] = []
    for name in ("forward_backward", "optim_step", "save_weights_and_get_sampling_client"):
        call = getattr(trainer.client, name)

        def logged(*args: Any, name: str = name, call: Any = call) -> Any:
            calls.append(name)
            result = call(*args)
            if hasattr(result, "result"):
                await_result = result.result
                result.result = lambda: calls.append("result") or await_result()
            return result

        monkeypatch.setattr(trainer.client, name, logged)
    trainer.train()
    pair = ["forward_backward", "optim_step"]
    sampler = "save_weights_and_get_sampling_client"
    assert calls == [sampler, *pair, *pair, sampler, *["result"] * 4]


@pytest.mark.setting("Failing runs", "works")
def test_failing_episodes_stop_the_run_and_do_not_move_the_weights(
    make_config: Make, make_settings: Make, server: LocalServer, tmp_path: Path
) -> None:
    odd = [1, 3, 5, 7]
    config = make_config(MOODY, seeds=odd, max_failed_updates=2)
    trainer = GemTinkerTrainer(config, make_settings(updates=9))
    before = lora(server, trainer)
    with pytest.raises(EnvError, match="every episode of the last 2 updates failed.*bad mood"):
        trainer.train()
    assert distance(before, lora(server, trainer)) == 0
    assert [line["failed"] for line in read_metrics(tmp_path)] == [1.0, 1.0]
    assert all(e.failed for e in recorded(tmp_path))


@pytest.mark.setting("Failed episodes", "works")
def test_failed_episodes_are_dropped_and_the_others_trained(
    make_config: Make, make_settings: Make, server: LocalServer, tmp_path: Path
) -> None:
    server.service.received.clear()
    train(make_config(MOODY, seeds=[1, 2, 3, 4]), make_settings(updates=1))
    assert sum(e.failed for e in recorded(tmp_path)) == 2
    (data,) = server.service.received
    assert len(data.ids) == 2


def test_sequences_without_an_advantage_are_not_sent(
    make_config: Make, make_settings: Make, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The losses are sums over tokens; without an advantage, even Adam's momentum moves nothing."""
    advantages = iter(([1.0, -1.0, 0.0, 0.0], [0.0] * 4))

    def compute(config: Any, episodes: list[Episode]) -> list[list[float]]:
        return [[a] * len(e.turns) for a, e in zip(next(advantages), episodes, strict=True)]

    config = make_config()
    monkeypatch.setattr(type(config), "compute_advantages", compute)
    trainer = GemTinkerTrainer(config, make_settings())
    weights = []
    save = trainer.client.save_weights_and_get_sampling_client
    monkeypatch.setattr(
        trainer.client,
        "save_weights_and_get_sampling_client",
        lambda: (save(), weights.append(lora(server, trainer)))[0],
    )
    server.service.received.clear()
    trainer.train()
    (data,) = server.service.received
    assert [set(each.tolist()) - {0.0} for each in data.inputs["advantages"]] == [{1.0}, {-1.0}]
    assert distance(weights[0], weights[1]) > 0 == distance(weights[1], weights[2])
    lines = read_metrics(Path(config.metrics))
    assert [line["grad_norm"] > 0 for line in lines] == [True, False]
    assert lines[1]["loss"] == 0 and lines[1]["tokens"] > 0


@pytest.mark.setting("Evaluation", "works")
def test_evaluation_plays_held_out_seeds(
    make_config: Make, make_settings: Make, tmp_path: Path
) -> None:
    train(make_config(eval_seeds=3), make_settings(updates=2, eval_every=2))
    lines = read_metrics(tmp_path)
    assert "eval_success" not in lines[0] and 0 <= lines[1]["eval_success"] <= 1
    evaluated = [e for e in recorded(tmp_path) if e.final_info.get("evaluation")]
    assert [e.seed for e in evaluated] == [1_000_000, 1_000_001, 1_000_002]
    assert {t.versions for e in evaluated for t in e.turns} == {(2, 2)}


@pytest.mark.setting("Rewritten history", "works")
def test_rewritten_history_trains_several_sequences_per_episode(
    make_config: Make, make_settings: Make, server: LocalServer, tmp_path: Path
) -> None:
    server.service.received.clear()
    train(make_config(wrappers="concat", seeds=[2, 5, 8, 11]), make_settings(updates=1))
    turns = sum(len(e.turns) for e in recorded(tmp_path))
    (data,) = server.service.received
    assert len(data.ids) == turns == 12


@pytest.mark.setting("Template mode", "works")
def test_history_as_the_template_writes_it(
    make_config: Make, make_settings: Make, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A template that shortens earlier answers, as Qwen3's does with thinking."""
    config = make_config(history="template", seeds=[2, 5, 8, 11])
    trainer = GemTinkerTrainer(make_config(), make_settings(updates=1))
    tokenizer = trainer.client.get_tokenizer()  # the client keeps it
    monkeypatch.setattr(
        tokenizer,
        "chat_template",
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{{ m.content if m.role != 'assistant' or loop.last else m.content[:1] }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    )
    server.service.received.clear()
    train(config, make_settings(updates=1))
    (data,) = server.service.received
    assert len(data.ids) == 12, "four episodes of three turns"


@pytest.mark.setting("`batch_end`", "works")
def test_plugins_get_the_whole_batch_once(
    make_config: Make, make_settings: Make, batch_ends: list[list[Episode]]
) -> None:
    train(make_config(seeds=4, eval_seeds=2), make_settings(updates=1, eval_every=1))
    assert [sorted(e.seed for e in episodes) for episodes in batch_ends] == [[0, 1, 2, 3]]


@pytest.mark.setting("Processes", "works")
def test_environments_run_in_processes(
    make_config: Make, make_settings: Make, tmp_path: Path
) -> None:
    train(make_config(execution="process", seeds=4), make_settings(updates=1))
    assert [e.failed for e in recorded(tmp_path)] == [False] * 4


def test_environment_that_fails_at_once_stops_before_a_model_is_created(
    make_config: Make, make_settings: Make, server: LocalServer
) -> None:
    models = len(server.service.trainings)
    config = make_config("math:Sample-v0", env_kwargs={"dataset": "/nowhere.jsonl"})
    with pytest.raises(EnvError, match="before training"):
        train(config, make_settings())
    assert len(server.service.trainings) == models


@pytest.mark.setting("LoRA", "works")
@pytest.mark.parametrize("rank", [1, 16])
def test_rank_of_the_lora_matrices(
    rank: int, make_config: Make, make_settings: Make, server: LocalServer
) -> None:
    trainer = train(make_config(), make_settings(updates=1, rank=rank))
    weights = lora(server, trainer)
    assert {value.shape[0] for name, value in weights.items() if name.endswith("down")} == {rank}
    assert all(bool(value.any()) for name, value in weights.items() if name.endswith("up"))


def test_sampler_gets_ids_a_seed_and_the_end_tokens() -> None:
    requests: list[tuple[Any, Any]] = []

    class Client:
        async def sample_async(self, prompt: Any, num_samples: int, params: Any) -> Any:
            requests.append((prompt.to_ints(), params))
            raise ConnectionError("gone")

    policy = EnginePolicy([2, 7])
    policy.sampler = Client(), 3
    with pytest.raises(ConnectionError, match="gone"):
        policy.generate([5, 6], Sampling(max_tokens=9, seed=4)).send(None)
    ((ids, params),) = requests
    assert ids == [5, 6]
    given = (params.max_tokens, params.seed, params.stop, params.temperature)
    assert given == (9, 4, [2, 7], 1.0)


def test_server_reports_an_unknown_loss_with_the_result(
    make_config: Make, make_settings: Make
) -> None:
    import tinker

    trainer = GemTinkerTrainer(make_config(), make_settings())
    datum = tinker.Datum(
        tinker.ModelInput.from_ints([3]), {"target_tokens": tinker.TensorData([4], "int64")}
    )
    with pytest.raises(tinker.RequestFailedError, match="not 'dro'"):
        trainer.client.forward_backward([datum], "dro").result()


def test_adam_settings_reach_the_optimizer(
    make_config: Make, make_settings: Make, server: LocalServer
) -> None:
    trainer = train(make_config(), make_settings(updates=1, adam={"beta1": 0.5}))
    model = server.service.trainings[trainer.client.model_id].model
    (group,) = model.optimizer.param_groups
    assert (group["lr"], group["betas"], group["weight_decay"]) == (1e-3, (0.5, 0.95), 0.0)
    assert torch.is_tensor(next(iter(model.lora.values())))
