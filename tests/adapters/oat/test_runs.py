"""Whole runs of oat's real actor and learner in this process: records, metrics, resume, LoRA."""

from __future__ import annotations

import math
import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from located import LOCATED, local_ray, processes_of, wait_for_exit
from thinking_template import STRIPPING
from worlds import ECHO, MOODY

from gem_core import register
from gem_core.adapter_kit.patching import patched
from gem_core.env.registry import environments
from gem_core.errors import ConfigError, EnvError
from gem_core.records.file import read_episodes
from gem_core.training.metrics_file import read_metrics
from gem_core.training.sequences import token_sequences
from gem_core.types import Episode
from gem_oat import GemActor, GemConfig, program
from gem_oat.checkpoint import Progress

pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")


@pytest.fixture
def located() -> Iterator[str]:
    register(LOCATED, "located:Located", replace=True)
    yield LOCATED
    environments.remove(LOCATED)


def run(actor: GemActor, learner: Any, updates: int) -> None:
    """Train as `LearnerBase.run` does, with an actor in this process."""
    learner.gem_actor, learner.start_time, learner.gradient_update_st = actor, 0.0, 0.0
    for step in range(1, updates + 1):
        learner.steps = step
        batch, info = actor.collect_experience()
        for transition in (t for transitions in batch for t in transitions):
            transition.info.update(info)
        batch = pickle.loads(pickle.dumps(batch))
        learner.actor_info = learner.collector.get_metrics(0.0, batch)
        learner.process_feedback_data(batch)
        train_info = learner.learn(step)
        learner.pi_buffer.clear()
        learner.eval_and_log(train_info)
    actor.finish()
    learner.gem_actor = None


def parameters(learner: Any) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in learner.model.model.module.named_parameters()}


def trained(path: Path) -> list[Episode]:
    """Return the episodes of a record that were trained, in order."""
    return [e for e in read_episodes(path) if "update" in e.final_info]


@pytest.mark.setting("Failing runs", "works")
def test_failing_environment_stops_the_run(
    make_actor: Callable[..., GemActor],
    make_learner: Callable[..., Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its first step works, so it passes the trial before training."""
    config = GemConfig(
        MOODY,
        seeds=[1, 3, 5],
        max_turn_tokens=4,
        record=str(tmp_path / "e.jsonl"),
        metrics=str(tmp_path / "m.jsonl"),
    )
    # no other test has this rate, so the optimizer has no momentum
    actor, learner = make_actor(config), make_learner(config, learning_rate=1.5e-4)
    before = parameters(learner)
    message = r"last 3 updates failed(.|\n)*Traceback(.|\n)*in a bad mood"
    with pytest.raises(EnvError, match=message):
        run(actor, learner, 9)
    assert [line["failed"] for line in read_metrics(tmp_path / "m.jsonl")] == [1.0] * 3
    assert all(torch.equal(p, before[n]) for n, p in parameters(learner).items())
    assert "16 of 16 episodes failed" in caplog.text
    episodes = trained(tmp_path / "e.jsonl")
    assert len(episodes) == 48 and all(e.failed for e in episodes)


def test_update_without_trained_tokens_does_not_move_the_weights(
    make_actor: Callable[..., GemActor],
    make_learner: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Adam's momentum from the first update would move them."""
    from worlds import Echo

    config = GemConfig(ECHO, seeds=16, max_turn_tokens=4)
    learner, weights = make_learner(config, learning_rate=1e-3), []
    weights.append(parameters(learner))
    run(make_actor(config), learner, 1)
    weights.append(parameters(learner))
    monkeypatch.setattr(Echo, "on_step", lambda self, action: 1 / 0)
    run(make_actor(config), learner, 1)
    weights.append(parameters(learner))
    moved = [
        any(not torch.equal(p, before[n]) for n, p in after.items())
        for before, after in pairwise(weights)
    ]
    assert moved == [True, False]


def test_environment_that_fails_at_once_stops_before_a_process_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tiny_oat import oat_args
    from worlds import Echo

    monkeypatch.setattr(Echo, "on_step", lambda self, action: 1 / 0)
    config = GemConfig(ECHO, seeds=8)
    with pytest.raises(EnvError, match=r"before training(.|\n)*division by zero"):
        program(config, oat_args(config))


def test_run_records_and_logs_what_it_trains(
    make_actor: Callable[..., GemActor],
    make_learner: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Metrics per turn and per environment, in oat's wandb log as well; records as trained."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    game = "game:GuessTheNumber-v0-easy"
    config = GemConfig(
        f"1*{ECHO} + 1*{game}",
        seeds=64,
        eval_seeds=4,
        max_turn_tokens=6,
        concurrency=6,
        record=str(tmp_path / "e.jsonl"),
        metrics=str(tmp_path / "m.jsonl"),
    )
    actor = make_actor(config)
    learner = make_learner(config, use_wb=True, eval_steps=20)
    run(actor, learner, 1)
    learner._wandb.finish()
    (line,) = read_metrics(tmp_path / "m.jsonl")
    shown = learner.actor_info
    for name in (f"env/{ECHO}/return", f"env/{game}/success", "turn/0/tokens", "turn/2-3/return"):
        assert shown[f"gem/{name}"] == line[name]
    assert 0 <= shown["gem/logprob_gap"] <= shown["gem/logprob_gap_p99"] < 1e-4
    assert line["logprob_gap"] == shown["gem/logprob_gap"]
    (log,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    names = (f"gem/env/{ECHO}/return", "gem/turn/0/tokens", "gem/logprob_gap_p99")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:  # wandb's own process writes the rest of its file
        if all(name.encode() in log.read_bytes() for name in names):
            break
        time.sleep(0.2)
    assert all(name.encode() in log.read_bytes() for name in names)
    sums = actor.play_held_out(config.held_out_seeds)
    assert f"env/{ECHO}/return" in sums.means()
    episodes = list(read_episodes(tmp_path / "e.jsonl"))
    evaluated = [e for e in episodes if e.final_info.get("evaluation")]
    assert sorted(e.seed for e in evaluated) == config.held_out_seeds
    with_advantages = trained(tmp_path / "e.jsonl")
    assert len(with_advantages) == line["episodes"]
    numbers = [a for e in with_advantages for a in e.final_info["advantages"]]
    mean = sum(map(abs, numbers)) / len(numbers)
    assert mean == pytest.approx(line["advantage_abs"], rel=1e-6)
    assert len({e.index for e in episodes if e not in evaluated}) == len(episodes) - len(evaluated)


@pytest.mark.setting("Resume", "works")
def test_resumed_run_trains_every_episode_once(
    make_actor: Callable[..., GemActor], make_learner: Callable[..., Any], tmp_path: Path
) -> None:
    def config(name: str) -> GemConfig:
        files = {"record": f"{tmp_path}/{name}.jsonl", "metrics": f"{tmp_path}/{name}/m.jsonl"}
        return GemConfig(
            ECHO, seeds=40, max_turn_tokens=4, concurrency=6, horizon="1,2,3@1", **files
        )

    settings = {"save_ckpt": True, "save_steps": 2, "max_train": 64, "learning_rate": 1e-3}
    run(make_actor(config("whole")), make_learner(config("whole")), 4)
    first = make_learner(config("parts"), **settings)
    run(make_actor(config("parts")), first, 2)
    folder = f"{first.save_path}/checkpoints"
    second = make_learner(config("parts"), resume_dir=folder, **settings)
    assert len(second.prompts_dataloader) == 2
    weights = parameters(first)
    assert all(torch.equal(p, weights[n]) for n, p in parameters(second).items())
    actor = make_actor(config("parts"))
    actor.resume(second.gem_updates, second.gem_trained)
    run(actor, second, 2)
    for name in ("whole", "parts"):
        assert [line["step"] for line in read_metrics(tmp_path / name / "m.jsonl")] == [0, 1, 2, 3]
        episodes = trained(tmp_path / f"{name}.jsonl")
        assert [e.final_info["update"] for e in episodes] == sorted(
            e.final_info["update"] for e in episodes
        )
        assert set(Counter(e.index for e in episodes).values()) == {1}
        order = config(name).task_of
        assert all(e.seed == order(e.index, order=42).seed for e in episodes)
        # an episode keeps the horizon that it began with
        longest = [
            max(len(e.turns) for e in episodes if e.final_info["update"] == u) for u in (0, 3)
        ]
        assert longest == [1, 3]
    # only the last episodes, which were unfinished at the end, are missing
    indices = {e.index for e in trained(tmp_path / "parts.jsonl")}
    assert set(range(len(indices) - 12)) <= indices
    with pytest.raises(ConfigError, match="raise max_train"):
        make_learner(config("parts"), resume_dir=folder, **{**settings, "max_train": 32})
    changed = replace(config("parts"), samples=2, seeds=41)
    with pytest.raises(ConfigError, match="3 settings are rejected") as raised:
        make_learner(changed, resume_dir=folder, seed=7, **settings)
    for text in ("samples=1, but this run has 2", "seeds=[0, 1", "seed=42, but this run has 7"):
        assert text in str(raised.value)


def test_progress_counts_trained_episodes() -> None:
    progress = Progress()
    progress.add([0, 1, 4])
    assert (progress.first_missing, progress.later) == (2, {4})
    assert [number in progress for number in range(6)] == [True, True, False, False, True, False]
    progress.add([3, 2])
    assert (progress.first_missing, progress.later) == (5, set())


@pytest.mark.setting("LoRA", "works")
def test_lora_trains_the_adapter_only(
    make_actor: Callable[..., GemActor], make_learner: Callable[..., Any]
) -> None:
    config = GemConfig(ECHO, seeds=64, max_turn_tokens=6, concurrency=6)
    learner = make_learner(config, lora_rank=4, learning_rate=1e-2)
    before = parameters(learner)
    run(make_actor(config), learner, 1)
    changed = {n for n, p in parameters(learner).items() if not torch.equal(p, before[n])}
    assert changed and all("lora_" in name for name in changed)
    assert math.isfinite(learner.actor_info["gem/logprob_gap"])
    gaps = []
    for sync in (False, True):
        actor = make_actor(config)  # with the weights from before training
        if sync:
            send_weights(learner, actor)
        run(actor, learner, 1)
        gaps.append(learner.actor_info["gem/logprob_gap"])
    assert gaps[1] < 1e-4 < 1e-3 < gaps[0], "the actors sample from the merged weights"


def send_weights(learner: Any, actor: GemActor) -> None:
    """Send the weights as oat does after an update; its process group has only this process."""
    names: list[str] = []

    def update_weight(name: str, **_: Any) -> Any:
        names.append(name)
        return SimpleNamespace(result=lambda: None)

    def broadcast(weight: torch.Tensor, source: int, group: Any) -> None:
        actor.llm.model.get_parameter(names[-1]).data.copy_(weight)

    futures = SimpleNamespace(futures=SimpleNamespace(update_weight=update_weight))
    with (
        patched(learner, "actors", [futures]),
        patched(torch.distributed, "broadcast", broadcast),
    ):
        learner._model_update_group = None
        learner._broadcast_to_vllm()
    assert len(set(names)) == len(names) > 0


@pytest.mark.setting("Template mode", "works")
def test_thinking_is_removed_from_history_and_every_turn_is_trained(
    make_actor: Callable[..., GemActor], make_learner: Callable[..., Any], tmp_path: Path
) -> None:
    config = GemConfig(
        ECHO,
        seeds=[2, 5],
        advantage="gae",
        horizon=2,
        max_turn_tokens=16,
        concurrency=2,
        history="template",
        record=str(tmp_path / "e.jsonl"),
    )
    actor = make_actor(config)
    actor.tokenizer.chat_template = STRIPPING
    actor.renderer = config.renderer(actor.tokenizer)
    actor.rollout.configure(renderer=actor.renderer)
    inner, words = actor.llm.generate, iter(range(10**6))

    def think(*args: Any, **kwargs: Any) -> Any:
        requests = inner(*args, **kwargs)
        for request in requests:
            text = f"<think>{next(words)}</think>{next(words)}"
            completion = request.outputs[0]
            ids = [*actor.tokenizer.encode(text), actor.renderer.turn_end]
            completion.token_ids, completion.finish_reason = ids, "stop"
            completion.logprobs = [{id: type("P", (), {"logprob": -1.0})} for id in ids]
        return requests

    actor.llm.generate = think
    learner = make_learner(config)
    run(actor, learner, 1)
    episodes = trained(tmp_path / "e.jsonl")
    for episode in episodes:
        assert len(token_sequences(episode)) == len(episode.turns) == 2
        prompt = actor.tokenizer.decode(episode.prompt_ids(1))
        assert (
            "<think>" not in prompt and episode.turns[0].action.partition("</think>")[2] in prompt
        )
    assert len(episodes) == 8 and learner.actor_info["gem/padding"] == 0


@pytest.mark.setting("Processes", "works")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of Ray's own processes
@pytest.mark.parametrize("execution", ["process", "ray"])
def test_environments_run_in_processes_that_end(
    make_actor: Callable[..., GemActor],
    make_learner: Callable[..., Any],
    located: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    execution: Any,
) -> None:
    config = GemConfig(
        located,
        seeds=8,
        max_turn_tokens=4,
        concurrency=2,
        execution=execution,
        hosts=1 if execution == "ray" else None,
        record=str(tmp_path / "e.jsonl"),
    )
    with local_ray(execution):
        run(make_actor(config), make_learner(config), 1)
    processes = processes_of(trained(tmp_path / "e.jsonl"))
    assert processes and os.getpid() not in processes
    assert execution == "process" or len(processes) == 1, "one host has all environments"
    assert wait_for_exit(processes)
    assert "all advantages are 0, so this update has no gradient" in caplog.text
