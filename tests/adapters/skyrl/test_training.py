"""Real runs of SkyRL's trainers with the tiny model: FSDP over gloo, a mock of vLLM."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from project import ROOT
from reference_gradient import gradient_norms
from safetensors.torch import load_file
from training_run import BrokenExp, run
from worlds import MOODY

from gem_core.errors import ConfigError, EnvError
from gem_core.records.file import read_episodes
from gem_core.training.metrics_file import read_metrics
from gem_core.training.sequences import token_sequences
from gem_core.types import Episode

GAME = "game:GuessTheNumber-v0-easy"
MIXTURE = f"1*{GAME} + 1*game:Hangman-v0-easy"
SHORTENS = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + (m['content'][:3] "
    "if m['role'] == 'assistant' and not loop.last else m['content']) + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""A chat template that shortens earlier answers, as Qwen3's removes their thinking."""
CRITIC_RUN: dict[str, Any] = {
    "env_id": MIXTURE,
    "advantage": "gae",
    "gamma": 0.9,
    "estimator_kwargs": {"lam": 0.8},
    "seeds": 24,
    "eval_seeds": 4,
    "horizon": "2,3@2",
    "history": "template",
    "execution": "process",
    "max_turn_tokens": 12,
}


@pytest.fixture(scope="module")
def templated(model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model with a chat template that rewrites history."""
    folder = tmp_path_factory.mktemp("models") / "templated"
    shutil.copytree(model, folder)
    (folder / "chat_template.jinja").write_text(SHORTENS)
    return str(folder)


@pytest.fixture(scope="module")
def critic_run(cluster: None, templated: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PPO with a critic on a mixture, in template mode, with environments in processes."""
    out = tmp_path_factory.mktemp("runs") / "critic"
    run(out, templated, CRITIC_RUN, critic_settings(templated, steps=3))
    return out


def critic_settings(model: str, steps: int) -> list[str]:
    return [
        f"trainer.critic.model.path={model}",
        f"trainer.max_training_steps={steps}",
        "trainer.eval_interval=3",
        "trainer.ckpt_interval=2",
    ]


def update_of(episodes: list[Episode], update: int) -> list[Episode]:
    return [e for e in episodes if e.final_info.get("update") == update]


@pytest.mark.setting("Growing horizon", "works")
@pytest.mark.setting("Processes", "works")
def test_critic_run_trains_every_update(critic_run: Path, templated: str) -> None:
    metrics = read_metrics(critic_run)
    # plain torch makes the same steps from the same episodes
    norms = gradient_norms(critic_run, model=templated, learning_rate=1e-3, weight_decay=0.01)
    assert [m["grad_norm"] for m in metrics] == pytest.approx(norms, rel=1e-3)
    assert [m["step"] for m in metrics] == [0, 1, 2]
    assert [m["horizon"] for m in metrics] == [2, 2, 3]
    for m in metrics:
        assert m["failed"] == 0 and m["episodes"] == 8
        assert m["grad_norm"] > 0 and m["critic_loss"] > 0
        assert 0 <= m["logprob_gap"] <= m["logprob_gap_p99"] < 1e-4, "the sampler has the weights"
        assert any(name.startswith("env/game:") for name in m)
    checkpoints = critic_run / "checkpoints"
    assert (checkpoints / "latest_ckpt_global_step.txt").read_text() == "3"
    assert (checkpoints / "global_step_2/critic").is_dir()


@pytest.mark.setting("Evaluation", "works")
@pytest.mark.setting("Template mode", "works")
def test_critic_run_records_episodes_as_trained(critic_run: Path) -> None:
    episodes = list(read_episodes(critic_run / "episodes.jsonl"))
    evaluated = [e for e in episodes if e.final_info.get("evaluation")]
    assert sorted(e.seed for e in evaluated) == [1_000_000 + i for i in range(4)]
    split = 0
    for update, line in enumerate(read_metrics(critic_run)):
        trained = update_of(episodes, update)
        assert len(trained) == 8 and not any(e.final_info.get("evaluation") for e in trained)
        assert {turn.versions for e in trained for turn in e.turns} == {(update, update)}
        sizes = [abs(a) for e in trained for a in e.final_info["advantages"] if a is not None]
        assert line["advantage_abs"] == pytest.approx(sum(sizes) / len(sizes))
        assert 1 < max(len(e.turns) for e in trained) <= line["horizon"]
        split += sum(len(token_sequences(e)) > 1 for e in trained)
    assert split > 0, "the template rewrites earlier answers"
    assert len(episodes) == 4 + 3 * 8


@pytest.mark.setting("Resume", "works")
@pytest.mark.long
def test_resumed_run_continues_after_its_last_update(
    critic_run: Path, templated: str, tmp_path: Path
) -> None:
    out = tmp_path / "resumed"
    shutil.copytree(critic_run, out)
    run(out, templated, CRITIC_RUN, critic_settings(templated, steps=5))
    metrics = read_metrics(out)
    assert [m["step"] for m in metrics] == [0, 1, 2, 3, 4]
    episodes = list(read_episodes(out / "episodes.jsonl"))
    known = {e.seed for update in range(3) for e in update_of(episodes, update)}
    for update in (3, 4):
        assert {turn.versions for e in update_of(episodes, update) for turn in e.turns} == {
            (update, update)
        }
        assert not known & {e.seed for e in update_of(episodes, update)}, "new seeds of the epoch"
        assert metrics[update]["logprob_gap"] < 1e-4, "the sampler has the checkpoint's weights"


def test_finished_run_trains_nothing_more(critic_run: Path, templated: str, tmp_path: Path) -> None:
    out = tmp_path / "again"
    shutil.copytree(critic_run, out)
    with pytest.raises(ConfigError, match="global_step_3 has 3 updates.*raise it, or set another"):
        run(out, templated, CRITIC_RUN, critic_settings(templated, steps=3))
    for name in ("metrics.jsonl", "episodes.jsonl"):
        assert (out / name).read_text() == (critic_run / name).read_text()


@pytest.mark.setting("Importance correction", "works")
@pytest.mark.setting("Entropy", "works")
@pytest.mark.setting("Asynchronous training", "works")
@pytest.mark.long
def test_async_run_trains_on_earlier_weights(cluster: None, model: str, tmp_path: Path) -> None:
    run(
        tmp_path,
        model,
        {"env_id": GAME, "seeds": 48, "gamma": 0.9, "max_turn_tokens": 12},
        [
            "trainer.algorithm.policy_loss_type=rollout_is",
            "trainer.algorithm.use_entropy_loss=true",
            "trainer.fully_async.enabled=true",
            "trainer.fully_async.max_staleness_steps=1",
            "trainer.fully_async.num_parallel_generation_workers=8",
            "trainer.max_training_steps=4",
            "trainer.resume_mode=none",
        ],
    )
    metrics = read_metrics(tmp_path)
    assert [m["step"] for m in metrics] == [0, 1, 2, 3]
    assert all(m["grad_norm"] > 0 and m["episodes"] == 8 for m in metrics)
    episodes = list(read_episodes(tmp_path / "episodes.jsonl"))
    ages = set()
    for update in range(4):
        trained = update_of(episodes, update)
        assert len(trained) == 8 and len({e.seed for e in trained}) == 4
        ages |= {update - turn.versions[0] for e in trained for turn in e.turns if turn.versions}
    assert min(ages) >= 0 and max(ages) >= 1
    assert len(episodes) > 32, "episodes that the run did not train are recorded, too"


SMALL_RUN: dict[str, Any] = {"env_id": GAME, "seeds": 48, "gamma": 0.9, "max_turn_tokens": 12}


ASYNC = [
    "trainer.algorithm.policy_loss_type=rollout_is",
    "trainer.fully_async.enabled=true",
    "trainer.fully_async.max_staleness_steps=1",
    "trainer.fully_async.num_parallel_generation_workers=8",
]


@pytest.mark.parametrize("mode", [[], ASYNC], ids=["sync", "async"])
def test_engine_error_ends_the_run_with_its_cause(
    mode: list[str], cluster: None, model: str, tmp_path: Path
) -> None:
    """SkyRL's async workers end their process at an error, and Ray would start it again."""
    settings = [*mode, "trainer.max_training_steps=4", "trainer.resume_mode=none"]
    with pytest.raises(RuntimeError, match="the engine is out of memory"):
        run(tmp_path, model, SMALL_RUN, settings, BrokenExp)
    steps = [m["step"] for m in read_metrics(tmp_path)]
    episodes = list(read_episodes(tmp_path / "episodes.jsonl"))
    assert steps == list(range(len(steps))) and 1 <= len(steps) < 4, "the run started once"
    assert sum("update" in e.final_info for e in episodes) == 8 * len(steps)


@pytest.mark.long
def test_failed_mini_batch_makes_no_optimizer_step(
    cluster: None, model: str, tmp_path: Path
) -> None:
    """Each mini-batch has the episodes of one seed; those of odd seeds fail."""
    settings = [
        "trainer.policy_mini_batch_size=1",
        "trainer.micro_train_batch_size_per_gpu=2",
        "trainer.algorithm.loss_reduction=sequence_mean",
        "trainer.algorithm.use_kl_loss=true",
        "trainer.max_training_steps=1",
        "trainer.ckpt_interval=1",
        "trainer.resume_mode=none",
    ]
    run(tmp_path, model, {"env_id": MOODY, "seeds": [0, 1, 2, 3]}, settings)
    assert [m["failed"] for m in read_metrics(tmp_path)] == [0.5]
    (path,) = (tmp_path / "checkpoints/global_step_1/policy").glob("optim_*.pt")
    state = torch.load(path, weights_only=False)["state"]
    assert {int(parameter["step"]) for parameter in state.values()} == {2}


@pytest.mark.setting("Data parallel", "works")
@pytest.mark.setting("Packing", "works")
@pytest.mark.long
def test_two_processes_with_packed_sequences_train_as_one_process(
    cluster: None, model: str, tmp_path: Path
) -> None:
    """The same episodes give the same gradient, however they are split and packed."""
    settings = ["trainer.max_training_steps=2", "trainer.resume_mode=none"]
    two = [
        "trainer.placement.policy_num_gpus_per_node=2",
        "trainer.micro_train_batch_size_per_gpu=2",
        "trainer.flash_attn=true",
        "trainer.remove_microbatch_padding=true",
    ]
    run(tmp_path / "one", model, SMALL_RUN, settings)
    run(tmp_path / "two", model, SMALL_RUN, [*settings, *two])
    one, both = (read_metrics(tmp_path / name) for name in ("one", "two"))
    assert [m["step"] for m in both] == [0, 1]
    assert both[0]["tokens"] == one[0]["tokens"] and both[0]["grad_norm"] > 0
    assert both[0]["grad_norm"] == pytest.approx(one[0]["grad_norm"], rel=1e-4)
    assert all(m["logprob_gap_p99"] < 1e-4 for m in both), "the sampler has the weights"


@pytest.mark.setting("LoRA", "works")
@pytest.mark.long
def test_lora_run_trains_the_adapter_and_samples_from_it(
    cluster: None, model: str, tmp_path: Path
) -> None:
    settings = [
        "trainer.policy.model.lora.rank=4",
        f"trainer.policy.model.lora.lora_sync_path={tmp_path}/adapter",
        "trainer.policy.optimizer_config.lr=1e-2",
        "trainer.max_training_steps=2",
        "trainer.ckpt_interval=2",
        "trainer.resume_mode=none",
    ]
    run(tmp_path, model, SMALL_RUN, settings)
    metrics = read_metrics(tmp_path)
    assert [m["step"] for m in metrics] == [0, 1]
    # a batch without a success has no gradient
    assert all((m["grad_norm"] > 0) == (m["advantage_abs"] > 0) for m in metrics)
    assert all(m["logprob_gap_p99"] < 1e-4 for m in metrics)
    weights = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert weights and all("lora_" in name for name in weights)
    # PEFT begins with zeros there
    assert all(bool(value.any()) for name, value in weights.items() if "lora_B" in name)
    assert (tmp_path / "checkpoints/global_step_2/policy/lora_adapter").is_dir()


@pytest.mark.setting("Failing runs", "works")
@pytest.mark.long
def test_failing_environment_ends_the_run(cluster: None, model: str, tmp_path: Path) -> None:
    with pytest.raises(EnvError, match="every episode of the last 2 updates failed"):
        run(
            tmp_path,
            model,
            {"env_id": MOODY, "seeds": list(range(1, 33, 2)), "max_failed_updates": 2},
            ["trainer.max_training_steps=4", "trainer.resume_mode=none"],
        )
    assert [m["failed"] for m in read_metrics(tmp_path)] == [1.0, 1.0]


def run_recipe(out: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run the recipe as a user does, with mocks of CUDA and vLLM; return its metrics."""
    program = str(ROOT / "examples/skyrl_guess_the_number.py")
    command = [sys.executable, "-W", "ignore", "-m", "skyrl_on_cpu", program, "--out", str(out)]
    path = os.pathsep.join(folder for folder in sys.path if folder)  # it has `skyrl_on_cpu`
    done = subprocess.run(
        [*command, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return read_metrics(out)


@pytest.mark.long
def test_recipe_improves_the_model(tmp_path: Path) -> None:
    size = ("--updates", "40", "--episodes", "64")
    metrics = run_recipe(tmp_path, *size, "--save-every", "25")
    success = [m["success"] for m in metrics]
    assert len(success) == 40
    saved = {path.name for path in (tmp_path / "checkpoints").glob("global_step_*")}
    assert saved == {"global_step_25", "global_step_40"}
    assert sum(success[-10:]) / 10 > sum(success[:5]) / 5 + 0.1, json.dumps(success)


@pytest.mark.long
def test_recipe_resumes_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    """With one update per epoch, SkyRL saves after each, and skips an epoch when it resumes."""
    size = ("--seeds", "8", "--episodes", "16", "--save-every", "25")
    assert len(run_recipe(tmp_path, *size, "--updates", "2")) == 2
    assert [m["step"] for m in run_recipe(tmp_path, *size, "--updates", "4")] == [0, 1, 2, 3]
