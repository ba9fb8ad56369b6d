"""Training on a CPU with RL2's real trainer, router and loss: recipes and command line."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from located import wait_for_end
from reference_gradient import gradient_norms
from rl2_programs import EXAMPLES, run, start
from thinking_template import SHORTENING, model_with_template

from gem_core.adapter_kit.ports import free_port
from gem_core.policies.tiny import tiny_model_path
from gem_core.records.file import read_episodes
from gem_core.training.metrics_file import read_metrics
from gem_core.training.sequences import token_sequences


@pytest.mark.parametrize(
    ("updates", "episodes"), [(3, 32), pytest.param(16, 96, marks=pytest.mark.long)]
)
def test_recipe_trains(
    tmp_path: Path, say: Callable[[str], None], updates: int, episodes: int
) -> None:
    out = tmp_path / "run"
    sizes = ["--updates", str(updates), "--episodes", str(episodes), "--max-length", "1024"]
    output = run(tmp_path, EXAMPLES / "rl2_guess_the_number.py", *sizes, "--out", str(out))
    assert f"metrics: {out}/metrics.jsonl" in output
    metrics = read_metrics(out)
    assert [m["step"] for m in metrics] == list(range(updates))
    assert all(
        math.isfinite(m["loss"]) and 0 < m["grad_norm"] < 100 and m["episodes"] == episodes
        for m in metrics
    )
    recorded = list(read_episodes(out / "episodes.jsonl"))
    batches = [recorded[i : i + episodes] for i in range(0, len(recorded), episodes)]
    success = [sum(bool(e.success) for e in batch) / episodes for batch in batches]
    assert [m["success"] for m in metrics] == success
    assert {t.versions for e in batches[-1] for t in e.turns} == {(updates - 1, updates - 1)}
    # plain torch makes the same steps from the same episodes
    norms = gradient_norms(out, updates=4, weight_decay=0.01)
    assert [m["grad_norm"] for m in metrics[:4]] == pytest.approx(norms, rel=1e-3)
    assert (out / "model" / "config.json").is_file()
    if updates == 16:
        first, last = sum(success[:3]) / 3, sum(success[-5:]) / 5
        say(f"success in RL2: {first:.1%} in the first 3 updates, {last:.1%} in the last 5")
        assert last > first, f"success went from {first:.1%} to {last:.1%}"


def test_run_fails_once_if_ray_does_not_start(tmp_path: Path) -> None:
    output = run(
        tmp_path,
        "-m",
        "gem_rl2",
        f"+gem.env_id={Path(__file__).parent}/rl2_worlds.py:Where",
        "+gem.seeds=8",
        "+gem.max_turn_tokens=6",
        "+gem.execution=ray",
        "train_data.prompts_per_rollout=8",
        "actor.max_length_per_device=1024",
        f"actor.model_name={tiny_model_path()}",
        "trainer.use_wandb=false",
        code=1,
        env={"RAY_ADDRESS": "no-address"},
    )
    assert output.count("EnvError: execution='ray' has no Ray (RAY_ADDRESS is no-address)") == 1


@pytest.mark.long
def test_recipe_appends_to_an_earlier_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments = ["--updates", "1", "--episodes", "8", "--max-length", "1024", "--out", str(out)]
    for recipe in ("rl2_async.py", "rl2_guess_the_number.py"):
        run(tmp_path, EXAMPLES / recipe, *arguments)
    assert [m["step"] for m in read_metrics(out)] == [0, 0]
    assert len(list(read_episodes(out / "episodes.jsonl"))) == 16


@pytest.mark.setting("Resume", "works")
@pytest.mark.setting("Importance correction", "works")
@pytest.mark.setting("Entropy", "works")
def test_run_with_a_critic_resumes_after_ctrl_c(tmp_path: Path) -> None:
    """A critic, environments in processes and on Ray hosts, evaluation, wandb, checkpoints.

    The chat template rewrites the history, so an episode has several sequences.
    """
    model = model_with_template(SHORTENING, tmp_path / "model")
    command = (
        "-m",
        "gem_rl2",
        f"+gem.env_id={Path(__file__).parent}/rl2_worlds.py:Where",
        "+gem.seeds=16",
        "+gem.eval_seeds=4",
        "+gem.advantage=gae",
        "+gem.history=template",
        "+gem.horizon='1,3@1'",
        "+gem.max_turn_tokens=6",
        "+gem.metrics=metrics.jsonl",
        "+gem.record=episodes.jsonl",
        f"actor.model_name={model}",
        "actor.max_length_per_device=1024",
        "actor.entropy.coef=0.01",
        "actor.tis_coef=2.0",
        "actor.lr=1e-3",
        "actor.update_per_rollout=2",
        "train_data.prompts_per_rollout=8",
        "trainer.n_epochs=3",
        "trainer.project=gem",
        "trainer.experiment_name=test",
        "trainer.save_freq=1",
        "trainer.load_ckpt_from=latest",
        "trainer.test_freq=2",
    )
    path = tmp_path / "metrics.jsonl"
    program = start(tmp_path, *command, "+gem.execution=process", WANDB_MODE="offline")
    with ThreadPoolExecutor(1) as reader:  # a full pipe would stop the program
        printed = reader.submit(program.communicate, timeout=600)
        # RL2's bare `except:` around a generation may swallow a Ctrl-C
        for step in (2, 3, 4, 5):
            saved = tmp_path / f"ckpts/test/step{step}/.metadata"
            while not printed.done() and not saved.exists():
                time.sleep(0.1)
            if program.poll() is None:
                program.send_signal(signal.SIGINT)
        output, _ = printed.result()
    assert path.exists() and program.returncode != 0, output[-4000:]
    before = len(list(read_episodes(tmp_path / "episodes.jsonl")))
    done = len(read_metrics(path))
    ray = ("+gem.execution=ray", "+gem.hosts=1")
    run(tmp_path, *command, *ray, env={"WANDB_MODE": "offline"})

    metrics = read_metrics(path)
    assert [m["step"] for m in metrics] == list(range(6)) and 2 <= done < 6
    episodes = list(read_episodes(tmp_path / "episodes.jsonl"))
    trained = [e for e in episodes if "update" in e.final_info]
    for epoch in (0, 1, 2):  # as without Ctrl-C
        seeds = [e.seed for e in trained if e.final_info["update"] // 2 == epoch]
        assert sorted(seeds) == list(range(16))
    for episode in trained:
        assert len(episode.turns) <= (1 if episode.final_info["update"] == 0 else 3)
        assert all(t.versions == (episode.final_info["update"],) * 2 for t in episode.turns)
    assert max(len(e.turns) for e in trained) == 3
    evaluated = [e for e in episodes if e.final_info.get("evaluation")]
    assert {e.seed for e in evaluated} == set(range(1_000_000, 1_000_004))
    later = [e for e in trained if len(e.turns) > 1]
    assert sum(len(token_sequences(e)) > 1 for e in later) > len(later) / 2
    for m in metrics:
        assert m["critic_loss"] > 0 and 0 <= m["logprob_gap"] < 1e-2
        assert m["turn/0/advantage_abs"] > 0
    for played, on_hosts in ((episodes[:before], False), (episodes[before:], True)):
        turns = [turn.info for e in played for turn in e.turns]
        assert {info["parent"] == "raylet" for info in turns} == {on_hosts}
        assert wait_for_end({(info["pid"], info["program"]) for info in turns})
    logs = b"".join(file.read_bytes() for file in tmp_path.rglob("*.wandb"))
    for name in ("gem/turn/0/return/train", "gem/return/test", "gem/logprob_gap_p99"):
        assert name.encode() in logs


@pytest.mark.setting("Failing runs", "works")
@pytest.mark.setting("Data parallel", "works")
def test_two_ranks_train_and_stop_together_when_every_episode_fails(tmp_path: Path) -> None:
    """The environment works in the trial and in two updates, then always raises."""
    command = (
        "-m",
        "gem_rl2",
        f"+gem.env_id={Path(__file__).parent}/rl2_worlds.py:Breaking",
        "+gem.seeds=64",
        "+gem.max_turn_tokens=6",
        "+gem.metrics=metrics.jsonl",
        "+gem.record=episodes.jsonl",
        f"actor.model_name={tiny_model_path()}",
        "actor.max_length_per_device=512",
        "actor.lr=1e-3",
        "train_data.prompts_per_rollout=8",
        "trainer.experiment_name=test",
        "trainer.use_wandb=false",
    )
    port = str(free_port())
    ranks = [
        start(
            tmp_path, *command, RANK=str(i), LOCAL_RANK=str(i), WORLD_SIZE="2",
            MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
        )
        for i in range(2)
    ]  # fmt: skip
    # the second may lose its connection to the first before it can raise the same error
    with ThreadPoolExecutor(len(ranks)) as readers:  # a full pipe would stop both
        outputs = list(readers.map(lambda rank: rank.communicate(timeout=600)[0], ranks))
    assert all(rank.returncode for rank in ranks), outputs[1][-4000:]
    assert "every episode of the last 3 updates failed" in outputs[0], outputs[0][-4000:]
    metrics = read_metrics(tmp_path)
    assert [m["failed"] for m in metrics] == [0.0, 0.0, 1.0, 1.0, 1.0]
    assert [m["grad_norm"] > 0 for m in metrics] == [True, True, False, False, False]
    episodes = list(read_episodes(tmp_path / "episodes.jsonl"))
    assert [e.failed for e in episodes] == [False] * 16 + [True] * 24


def test_command_line_without_an_environment_is_rejected(tmp_path: Path) -> None:
    output = run(tmp_path, "-m", "gem_rl2", "trainer.use_wandb=false", code=1)
    assert "the command line, in +gem.X=Y, has no env_id" in output
