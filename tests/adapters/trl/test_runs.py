"""Whole runs of the real GRPOTrainer: failing environments, loggers, resume, LoRA, execution."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import wraps
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb
from located import LOCATED, local_ray, processes_of, wait_for_exit
from peft import LoraConfig
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from thinking_template import STRIPPING
from transformers import TrainerCallback
from worlds import ECHO, MOODY, Echo

from gem_core import register
from gem_core.env.registry import environments
from gem_core.errors import EnvError
from gem_core.records.file import read_episodes
from gem_core.training.advantage import advantages
from gem_core.training.metrics_file import read_metrics
from gem_core.training.sequences import token_sequences
from gem_trl import GemConfig, train, trainer_kwargs

GAME = "game:GuessTheNumber-v0-easy"


@pytest.fixture
def located() -> Iterator[str]:
    register(LOCATED, "located:Located", replace=True)
    yield LOCATED
    environments.remove(LOCATED)


class StopAfter(TrainerCallback):
    """Ends training after some steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step >= self.steps


def parameters(trainer: Any) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in trainer.model.named_parameters()}


def test_environment_that_fails_at_once_stops_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Echo, "on_step", lambda self, action: 1 / 0)
    with pytest.raises(EnvError, match=r"before training(.|\n)*division by zero"):
        trainer_kwargs(GemConfig(ECHO, seeds=8))


@pytest.mark.setting("Failing runs", "works")
def test_failing_environment_stops_the_run(
    make_trainer: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its first step works, so it passes the trial before training."""
    files = {"record": str(tmp_path / "e.jsonl"), "metrics": str(tmp_path / "m.jsonl")}
    trainer = make_trainer(
        GemConfig(MOODY, seeds=[1, 3, 5, 7], max_turn_tokens=6, **files), max_steps=9
    )
    before = parameters(trainer)
    message = r"last 3 updates failed(.|\n)*Traceback(.|\n)*in a bad mood"
    with pytest.raises(EnvError, match=message):
        trainer.train()
    assert trainer.state.global_step == 3
    assert [line["failed"] for line in read_metrics(tmp_path / "m.jsonl")] == [1.0] * 3
    assert all(torch.equal(p, before[n]) for n, p in parameters(trainer).items())
    assert "4 of 4 episodes failed" in caplog.text
    trainer.gem_rollout.close()
    episodes = list(read_episodes(tmp_path / "e.jsonl"))
    assert len(episodes) == 12 and all(e.failed for e in episodes)


class FailAfter(TrainerCallback):
    """Makes every episode fail after the first update, and keeps the weights at that point."""

    def __init__(self, fail: Callable[[], None]) -> None:
        self.fail, self.weights = fail, dict[str, torch.Tensor]()

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        if state.global_step == 1:
            self.weights = {n: p.detach().clone() for n, p in model.named_parameters()}
            self.fail()


def test_update_without_trained_tokens_does_not_move_the_weights(
    make_trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adam's momentum from the first update would move them."""
    failing = FailAfter(lambda: monkeypatch.setattr(Echo, "on_step", lambda self, action: 1 / 0))
    config = GemConfig(ECHO, seeds=16, max_turn_tokens=6)
    trainer = make_trainer(config, None, {"callbacks": [failing]}, max_steps=3)
    before = parameters(trainer)
    trainer.train()
    assert any(not torch.equal(p, before[n]) for n, p in failing.weights.items())
    assert all(torch.equal(p, failing.weights[n]) for n, p in parameters(trainer).items())


def test_metrics_per_turn_and_per_environment_reach_every_logger(
    make_trainer: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tensorboard"))
    config = GemConfig(
        f"1*{ECHO} + 1*{GAME}", seeds=16, eval_seeds=4, max_turn_tokens=6, metrics=str(tmp_path)
    )
    trainer = make_trainer(
        config,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=8,
        eval_strategy="steps",
        eval_steps=1,
        report_to=["tensorboard", "wandb"],
    )
    trainer.train()
    trained, evaluated = trainer.state.log_history[:2]
    (line,) = read_metrics(tmp_path)
    names = [f"env/{ECHO}/return", f"env/{GAME}/advantage_abs", "turn/0/tokens", "turn/1/return"]
    for name in names:
        assert trained[f"gem/{name}"] == pytest.approx(line[name])
    assert f"eval_gem/env/{GAME}/success" in evaluated
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    tags = events.Tags()["scalars"]
    wandb.finish()
    (log,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    logged, deadline = [f"train/gem/{name}" for name in names], time.monotonic() + 60
    while time.monotonic() < deadline:  # wandb's own process writes the rest of its file
        if all(name.encode() in log.read_bytes() for name in logged):
            break
        time.sleep(0.2)
    for name in logged:
        assert name in tags and name.encode() in log.read_bytes()
    assert f"eval/gem/env/{GAME}/success" in tags


@pytest.mark.setting("Resume", "works")
def test_resumed_run_continues_seeds_horizon_records_and_metrics(
    trainer_settings: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    def config(name: str) -> GemConfig:
        files = {"record": f"{tmp_path}/{name}.jsonl", "metrics": f"{tmp_path}/{name}/m.jsonl"}
        return GemConfig(ECHO, seeds=16, max_turn_tokens=4, horizon="1,2,3@1", **files)

    trainer = train(config("whole"), trainer_settings(max_steps=4))
    assert trainer.state.global_step == 4
    saved = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    train(config("parts"), {**trainer_settings(**saved), "callbacks": [StopAfter(2)]})
    checkpoint = str(tmp_path / "trainer" / "checkpoint-2")
    resumed = train(config("parts"), trainer_settings(resume_from_checkpoint=checkpoint, **saved))
    assert resumed.state.global_step == 4
    played = []
    for name in ("whole", "parts"):
        assert [line["step"] for line in read_metrics(tmp_path / name / "m.jsonl")] == [0, 1, 2, 3]
        episodes = list(read_episodes(tmp_path / f"{name}.jsonl"))
        played.append([(e.final_info["update"], e.seed, len(e.turns)) for e in episodes])
    assert played[0] == played[1], "update, seed and horizon of every episode"
    horizons = [max(turns for u, _, turns in played[0] if u == update) for update in range(4)]
    assert horizons[0] == 1 and horizons[1] <= 2 and max(horizons) > 1


@pytest.mark.setting("LoRA", "works")
def test_lora_trains_the_adapter_only(make_trainer: Callable[..., Any]) -> None:
    trainer = make_trainer(
        GemConfig(ECHO, seeds=16, max_turn_tokens=6),
        kwargs={"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"])},
    )
    before = parameters(trainer)
    trainer.train()
    changed = {n for n, p in parameters(trainer).items() if not torch.equal(p, before[n])}
    assert changed and all("lora_" in name for name in changed)


@pytest.mark.setting("Template mode", "works")
@pytest.mark.setting("Rewritten history", "works")
def test_several_sequences_per_episode_are_trained_with_their_advantages(
    make_trainer: Callable[..., Any],
    trainer_settings: Callable[..., dict[str, Any]],
    tmp_path: Path,
) -> None:
    """The chat template removes earlier thinking; four optimizer steps share eight rows."""
    files = {"record": str(tmp_path / "e.jsonl")}
    tokenizer = trainer_settings()["processing_class"]
    tokenizer.chat_template = STRIPPING
    trainer = make_trainer(
        GemConfig(ECHO, seeds=[0, 1], history="template", gamma=0.9, max_turn_tokens=32, **files),
        kwargs={"processing_class": tokenizer},
        per_device_train_batch_size=1,
        steps_per_generation=4,
        max_steps=4,
    )
    generate, words = trainer._generate_single_turn, count()

    @wraps(generate)
    def think(prompts: Any, *args: Any, **kwargs: Any) -> Any:
        texts = [f"<think>{next(words)}</think>{next(words)}" for _ in prompts]
        return [[*tokenizer.encode(text), tokenizer.eos_token_id] for text in texts], None

    trainer._generate_single_turn = think
    batches: list[Any] = []
    compute_loss = trainer._compute_loss
    trainer._compute_loss = lambda model, inputs: (
        batches.append(inputs) or compute_loss(model, inputs)
    )
    trainer.train()
    episodes = list(read_episodes(tmp_path / "e.jsonl"))
    per_episode = advantages(episodes, "rebn", gamma=0.9)
    expected = [
        (sequence.ids, sequence.mask, sequence.broadcast(per_turn))
        for episode, per_turn in zip(episodes, per_episode)
        for sequence in token_sequences(episode)
    ]
    assert len(expected) == 6, "two episodes of one turn, and two of two turns"
    trained = []
    for batch in batches:
        assert len(batch["prompt_ids"]) == 2
        for i in range(2):
            prompt = batch["prompt_ids"][i][batch["prompt_mask"][i].bool()].tolist()
            kept = batch["completion_mask"][i].bool()
            mask = batch["tool_mask"][i][kept].tolist()
            if any(mask):
                ids = (*prompt, *batch["completion_ids"][i][kept].tolist())
                zeros = [0.0] * len(prompt)
                numbers = zeros + batch["advantages"][i][kept].tolist()
                trained.append((ids, (*[0] * len(prompt), *mask), numbers))
    for actual, wanted in zip(sorted(trained), sorted(expected), strict=True):
        assert actual[:2] == wanted[:2]
        assert actual[2] == pytest.approx(wanted[2], abs=1e-6)
    log = trainer.state.log_history[0]
    assert log["reward"] == pytest.approx(sum(e.total_reward for e in episodes) / 4)


@pytest.mark.setting("Processes", "works")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of Ray's own processes
@pytest.mark.parametrize(("execution", "expected"), [("process", 4), ("ray", 1)])
def test_environments_run_in_processes_that_end(
    make_trainer: Callable[..., Any],
    located: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    execution: Any,
    expected: int,
) -> None:
    files = {"record": str(tmp_path / "e.jsonl")}
    config = GemConfig(
        located,
        seeds=[2, 5],
        max_turn_tokens=4,
        execution=execution,
        hosts=1 if execution == "ray" else None,
        **files,
    )
    with local_ray(execution):
        make_trainer(config).train()
    processes = processes_of(list(read_episodes(tmp_path / "e.jsonl")))
    assert len(processes) == expected and os.getpid() not in processes
    assert wait_for_exit(processes)
    assert "all advantages are 0, so this update has no gradient" in caplog.text
