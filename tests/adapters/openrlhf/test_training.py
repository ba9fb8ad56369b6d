"""Training with OpenRLHF's real `train_ppo_ray`, Ray, DeepSpeed and vLLM, on the CPU (see cpu/)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from located import wait_for_end
from reference_gradient import gradient_norms
from safetensors.torch import load_file
from thinking_template import SHORTENING, model_with_template

from gem_core.policies.tiny import tiny_model_path
from gem_core.records.file import read_episodes
from gem_core.training.metrics_file import read_metrics
from gem_core.training.sequences import token_sequences

RECIPE = Path(__file__).parents[3] / "examples" / "openrlhf_guess_the_number.py"
UPDATES, EPISODES = 4, 32


def start(*command: str, cwd: Path) -> subprocess.Popen[str]:
    """Start a program with the CPU mocks of OpenRLHF."""
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "WANDB_MODE": "offline",
    }
    return subprocess.Popen(
        (sys.executable, "-m", "openrlhf_on_cpu", *command),
        env=env,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(*command: str, cwd: Path) -> str:
    """Run a program with the CPU mocks of OpenRLHF, and return its output."""
    program = start(*command, cwd=cwd)
    output, _ = program.communicate(timeout=1200)
    assert program.returncode == 0, output[-9000:]
    return output


SMALL: dict[str, Any] = {
    "gem.env_id": "game:GuessTheNumber-v0-easy",
    "gem.metrics": "metrics.jsonl",
    "gem.record": "episodes.jsonl",
    "actor.model_name_or_path": tiny_model_path(),
    "actor.num_gpus_per_node": 1,
    "algo.kl.init_coef": 0,
    "rollout.micro_batch_size": 4,
    "train.micro_batch_size": 4,
    "vllm.num_engines": 1,
}
"""Flags of small runs on the tiny model."""


def flags_of(settings: dict[str, Any]) -> list[str]:
    return [part for name, value in settings.items() for part in (f"--{name}", str(value))]


@pytest.mark.slow
def test_recipe_trains(tmp_path: Path, say: Callable[[str], None]) -> None:
    out = tmp_path / "out"
    settings: dict[str, Any] = {
        "updates": UPDATES,
        "episodes": EPISODES,
        "micro-batch": 16,
        "correction": "token",
        "seeds": 20,  # more than the 16 of an update, and not enough for two
        "out": out,
    }
    flags = flags_of(settings)
    flags.append("--eager")  # vLLM on a CPU has no graphs
    assert f"gem-rl plot {out}" in run(str(RECIPE), *flags, cwd=tmp_path)
    metrics, episodes = read_metrics(out), list(read_episodes(out / "episodes.jsonl"))
    for m in metrics:
        say(f"update {m['step']}: success {m['success']:.1%}, {m['seconds']:.0f} s")
    assert [m["step"] for m in metrics] == list(range(UPDATES))
    assert len(episodes) == UPDATES * EPISODES
    for m in metrics:
        # an update trains on the episodes sampled from the weights before it
        batch = [e for e in episodes if e.turns[0].versions == (m["step"], m["step"])]
        assert len(batch) == m["episodes"] == EPISODES
        assert {e.seed for e in batch} == set(range(EPISODES // 2)), "an epoch has every seed"
        assert m["success"] == pytest.approx(sum(bool(e.success) for e in batch) / EPISODES)
        assert m["return"] == pytest.approx(sum(sum(e.rewards) for e in batch) / EPISODES)
        assert m["tokens"] == sum(len(t.action_ids) for e in batch for t in e.turns)
        assert m["grad_norm"] > 0 and m["advantage_abs"] > 0 and m["loss"] is not None
        assert abs(m["vllm_kl"]) < 1e-4, "vLLM and the trainer compute the same logprobs"
        assert 0 < m["logprob_gap"] < 1e-2 and m["logprob_gap"] <= m["logprob_gap_p99"]
        assert all(e.final_info["update"] == m["step"] for e in batch), "recorded as trained"
        recorded = [a for e in batch for a in e.final_info["advantages"]]
        assert m["advantage_abs"] == pytest.approx(sum(map(abs, recorded)) / len(recorded))
    # plain torch makes the same steps from the same episodes, without micro-batches
    assert [m["grad_norm"] for m in metrics] == pytest.approx(gradient_norms(out), rel=1e-3)
    assert largest_change(out / "model") > 1e-4


@pytest.mark.long
def test_incomplete_batches_take_steps_of_their_own(tmp_path: Path) -> None:
    """Two epochs of 20 seeds: updates on 16, 4, 16 and 4 episodes."""
    settings = {
        **SMALL,
        "gem.max_turn_tokens": 24,
        "gem.seeds": 20,
        "actor.adam.lr": 2e-3,
        "actor.lr_scheduler": "constant",
        "ckpt.output_dir": tmp_path / "model",
        "data.max_len": 1024,
        "ds.attn_implementation": "sdpa",
        "rollout.batch_size": 16,
        "train.batch_size": 16,
        "train.num_episodes": 2,
    }
    flags = flags_of(settings)
    flags += ["--vllm.enforce_eager", "--actor.adam.betas", "0.9", "0.999"]
    run("-m", "gem_openrlhf", *flags, cwd=tmp_path)
    metrics = read_metrics(tmp_path / "metrics.jsonl")
    assert [m["episodes"] for m in metrics] == [16, 4, 16, 4]
    assert [m["grad_norm"] for m in metrics] == pytest.approx(gradient_norms(tmp_path), rel=1e-3)


@pytest.mark.setting("LoRA", "works")
@pytest.mark.setting("Packing", "works")
@pytest.mark.long
def test_lora_trains_the_adapter_only(tmp_path: Path) -> None:
    """Two updates with packed samples. vLLM samples the second batch with the adapter."""
    settings = {
        **SMALL,
        "gem.max_turn_tokens": 8,
        "gem.seeds": 16,
        "actor.adam.lr": 1e-2,
        "algo.advantage.is_correction_level": "token",
        "ckpt.output_dir": tmp_path / "model",
        "data.max_len": 512,
        "ds.lora.alpha": 16,
        "ds.lora.rank": 4,
        "rollout.batch_size": 8,
        "train.batch_size": 8,
    }
    flags = flags_of(settings)
    flags += ["--ds.packing_samples", "--vllm.enforce_eager"]
    run("-m", "gem_openrlhf", *flags, cwd=tmp_path)
    metrics = read_metrics(tmp_path / "metrics.jsonl")
    assert [m["step"] for m in metrics] == [0, 1]
    for m in metrics:
        # a batch without a success has no gradient
        assert m["failed"] == 0 and (m["grad_norm"] > 0) == (m["advantage_abs"] > 0)
        # vLLM attends without packing, and has the sum of base model and adapter
        assert abs(m["vllm_kl"]) < 1e-4 and 0 < m["logprob_gap_p99"] < 1e-2
    episodes = list(read_episodes(tmp_path / "episodes.jsonl"))
    assert {e.turns[0].versions for e in episodes} == {(0, 0), (1, 1)}
    adapter = load_file(str(tmp_path / "model" / "adapter_model.safetensors"))
    assert adapter and all(".lora_" in name for name in adapter)
    changed = [float(weight.abs().max()) for name, weight in adapter.items() if "lora_B" in name]
    assert min(changed) > 1e-3, "every layer's adapter was trained; lora_B is 0 at the start"


@pytest.mark.setting("Resume", "works")
@pytest.mark.setting("Asynchronous training", "works")
@pytest.mark.setting("Importance correction", "works")
@pytest.mark.setting("Data parallel", "works")
@pytest.mark.setting("Entropy", "works")
@pytest.mark.long
def test_run_with_a_critic_resumes_asynchronously_after_ctrl_c(tmp_path: Path) -> None:
    """A critic, environments in processes and on Ray hosts, evaluation, loggers, checkpoints.

    Policy and critic have two processes each. The chat template rewrites the history, so an episode
    has several sequences.
    """
    settings: dict[str, Any] = {
        "gem.env_id": f"{Path(__file__).parent}/cpu/worlds_with_pids.py:Where",
        "gem.advantage": "gae",
        "gem.eval_seeds": 4,
        "gem.history": "template",
        "gem.horizon": "1,3@1",
        "gem.max_turn_tokens": 8,
        "gem.metrics": "metrics.jsonl",
        "gem.record": "episodes.jsonl",
        "gem.seeds": 24,
        "actor.model_name_or_path": model_with_template(SHORTENING, tmp_path / "before"),
        "actor.entropy_coef": 0.01,
        "actor.num_gpus_per_node": 2,
        "algo.advantage.is_correction_level": "token",
        "algo.kl.init_coef": 0,
        "ckpt.output_dir": tmp_path / "model",
        "ckpt.path": tmp_path / "checkpoints",
        "ckpt.save_steps": 1,
        "critic.num_gpus_per_node": 2,
        "data.max_len": 512,
        "ds.attn_implementation": "sdpa",
        "eval.steps": 2,
        "logger.tensorboard_dir": tmp_path / "tensorboard",
        "logger.wandb.key": "0" * 40,
        "rollout.batch_size": 8,
        "rollout.micro_batch_size": 4,
        "train.batch_size": 8,
        "train.micro_batch_size": 4,
        "vllm.num_engines": 1,
    }
    flags = flags_of(settings)
    flags += ["--vllm.enforce_eager", "--logger.logging_steps", "1"]
    command = ("-m", "gem_openrlhf", *flags)
    program = start(*command, "--gem.execution", "process", cwd=tmp_path)
    path = tmp_path / "metrics.jsonl"
    for _ in range(18000):
        if program.poll() is not None or (path.exists() and read_metrics(path)):
            break
        time.sleep(0.1)
    program.send_signal(signal.SIGINT)
    output, _ = program.communicate(timeout=300)
    assert path.exists(), output[-9000:]
    interrupted = list(read_episodes(tmp_path / "episodes.jsonl"))
    done = len(read_metrics(path))
    assert 1 <= done < 3, "Ctrl-C came before the last update"
    more = ("--gem.execution", "ray", "--ckpt.load_enable", "--train.async_enable")
    run(*command, *more, cwd=tmp_path)

    assert [m["step"] for m in read_metrics(path)] == [0, 1, 2]
    episodes = list(read_episodes(tmp_path / "episodes.jsonl"))
    evaluated = [e for e in episodes if e.final_info.get("evaluation")]
    assert {e.seed for e in evaluated} == set(range(1_000_000, 1_000_004))
    trained = [e for e in episodes if "update" in e.final_info]
    # the record has an update twice if Ctrl-C came before its checkpoint
    seeds = {(e.final_info["update"], e.seed) for e in trained}
    assert sorted(seed for _, seed in seeds) == list(range(24)), "as without Ctrl-C"
    assert sorted(update for update, _ in seeds) == [0] * 8 + [1] * 8 + [2] * 8
    for episode in trained:
        # the horizon grows with the updates
        assert len(episode.turns) <= (1 if episode.turns[0].versions[0] == 0 else 3)
    assert max(len(e.turns) for e in trained) == 3
    later = [e for e in trained if len(e.turns) > 1]
    assert sum(len(token_sequences(e)) > 1 for e in later) > len(later) / 2
    for m in read_metrics(path):
        assert m["critic_loss"] > 0 and m["grad_norm"] > 0 and m["logprob_gap"] < 1e-2
        assert m["turn/0/advantage_abs"] > 0
    for run_episodes, on_hosts in ((interrupted, False), (episodes[len(interrupted) :], True)):
        turns = [turn.info for e in run_episodes for turn in e.turns]
        # Ray starts its actors: the hosts and the engine
        assert {info["parent"] == "raylet" for info in turns} == {on_hosts}
        assert wait_for_end({(info["pid"], info["program"]) for info in turns})
    check_loggers(tmp_path)


def check_loggers(folder: Path) -> None:
    """Check that gem's metrics are in the files of tensorboard and wandb."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logged: dict[str, list[int]] = {}
    for file in sorted((folder / "tensorboard").rglob("events.*")):
        events = EventAccumulator(str(file)).Reload()
        for tag in events.Tags()["scalars"]:
            logged.setdefault(tag, []).extend(event.step for event in events.Scalars(tag))
    for name in ("gem/return", "gem/turn/0/advantage_abs", "gem/logprob_gap_p99", "critic_loss"):
        assert sorted(logged[f"train/{name}"]) == [1, 2, 3]
    assert {"eval/gem/success", "eval/gem/turn/0/return"} <= logged.keys()
    offline = [file.read_bytes() for file in folder.rglob("*.wandb")]
    assert any(b"train/gem/turn/0/advantage_abs" in content for content in offline)


def largest_change(folder: Path) -> float:
    """Return the largest change of a weight during training."""
    after = load_file(str(folder / "model.safetensors"))
    before = load_file(str(tiny_model_path() / "model.safetensors"))
    shared = before.keys() & after.keys()
    assert len(shared) >= len(after) - 1  # a tied output layer may be saved, too
    return max(float((before[n].float() - after[n].float()).abs().max()) for n in shared)
