"""Real runs of verl's trainers with the tiny model, on the mock platform and inference server."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from training_run import run

from gem_core.errors import EnvError
from gem_core.records.file import RecordWriter, read_episodes
from gem_core.training.advantage import advantages
from gem_core.training.metrics_file import read_metrics
from gem_core.training.sequences import token_sequences
from gem_core.types import Episode

MIXTURE = "1*game:GuessTheNumber-v0-easy + 1*game:Hangman-v0-easy"
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
CRITIC_SETTINGS = [
    f"actor_rollout_ref.model.custom_chat_template={json.dumps(SHORTENS)}",
    "actor_rollout_ref.model.lora_rank=4",
    "actor_rollout_ref.model.lora.merge=True",
    "trainer.total_training_steps=3",
    "trainer.test_freq=3",
    "trainer.save_freq=2",
]


@pytest.fixture(scope="module")
def critic_run(training_cluster: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PPO with a critic and LoRA on a mixture, in template mode, with environments in processes."""
    out = tmp_path_factory.mktemp("runs") / "critic"
    run(out, CRITIC_RUN, CRITIC_SETTINGS, ["tensorboard", "wandb"])
    return out


def logged(logs: Path, out: Path) -> dict[int, dict[str, Any]]:
    """Return what verl's own logger wrote, by step."""
    lines = map(json.loads, (logs / "gem" / f"{out.name}.jsonl").read_text().splitlines())
    return {line["step"]: line["data"] for line in lines}


def update_of(episodes: list[Episode], update: int) -> list[Episode]:
    return [e for e in episodes if e.final_info.get("update") == update]


@pytest.mark.setting("LoRA", "works")
@pytest.mark.setting("Processes", "works")
@pytest.mark.long
def test_critic_run_trains_every_update(critic_run: Path, training_cluster: Path) -> None:
    metrics, log = read_metrics(critic_run), logged(training_cluster, critic_run)
    assert [m["step"] for m in metrics] == [0, 1, 2]
    assert [m["horizon"] for m in metrics] == [2, 2, 3]
    for step, m in enumerate(metrics, 1):
        assert m["failed"] == 0 and m["episodes"] == 8
        assert m["grad_norm"] > 0 and m["critic_loss"] > 0
        # the sampler has the adapter merged into its weights, which rounds them
        assert 0 <= m["logprob_gap"] <= m["logprob_gap_p99"] < 0.1
        for name in ("logprob_gap", "turn/0/return", "turn/0/advantage_abs"):
            assert log[step][f"gem/{name}"] == m[name]
        assert any(name.startswith("gem/env/game:") for name in log[step])
    assert json.loads(
        (critic_run / "checkpoints/global_step_2/actor/lora_train_meta.json").read_text()
    )


@pytest.mark.setting("Evaluation", "works")
@pytest.mark.setting("Template mode", "works")
@pytest.mark.long
def test_critic_run_records_episodes_as_trained(critic_run: Path) -> None:
    episodes = list(read_episodes(critic_run / "episodes.jsonl"))
    evaluated = [e for e in episodes if e.final_info.get("evaluation")]
    assert sorted(e.seed for e in evaluated) == [1_000_000 + i for i in range(4)]
    metrics = read_metrics(critic_run)
    split = 0
    for update, line in enumerate(metrics):
        trained = update_of(episodes, update)
        assert len(trained) == 8 and not any(e.final_info.get("evaluation") for e in trained)
        sizes = [abs(a) for e in trained for a in e.final_info["advantages"] if a is not None]
        assert line["advantage_abs"] == pytest.approx(sum(sizes) / len(sizes))
        assert 1 < max(len(e.turns) for e in trained) <= line["horizon"]
        split += sum(len(token_sequences(e)) > 1 for e in trained)
    assert split > 0, "the template rewrites earlier answers"
    assert len(episodes) == 4 + 3 * 8


@pytest.mark.long
def test_critic_run_reaches_tensorboard_and_wandb(critic_run: Path, training_cluster: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(next(training_cluster.rglob("events.*"))))
    events.Reload()
    names = {
        "gem/success",
        "gem/logprob_gap",
        "timing_s/gem",
        "gem/turn/0/return",
        "gem/env/game:GuessTheNumber-v0-easy/return",
        "val-aux/game:GuessTheNumber-v0-easy/return/mean@1",
        "val-aux/game:Hangman-v0-easy/success/mean@1",
    }
    assert names <= set(events.Tags()["scalars"])
    (offline,) = training_cluster.glob("wandb/offline-run-*/*.wandb")
    assert all(name.encode() in offline.read_bytes() for name in names)


@pytest.mark.setting("Resume", "works")
@pytest.mark.long
def test_resumed_run_continues_as_without_the_interruption(
    critic_run: Path, training_cluster: Path
) -> None:
    """The copy has the files of a run that was interrupted after its second update."""
    resumed = critic_run.with_name("resumed")
    shutil.copytree(critic_run / "checkpoints", resumed / "checkpoints")
    lines = (critic_run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (resumed / "metrics.jsonl").write_text("".join(lines[:2]))
    before = list(read_episodes(critic_run / "episodes.jsonl"))
    with RecordWriter(resumed / "episodes.jsonl") as record:
        for episode in before:
            if episode.final_info.get("update", 2) < 2:
                record.write(episode)
    (resumed / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("2")
    run(resumed, CRITIC_RUN, [*CRITIC_SETTINGS, "trainer.resume_mode=auto"])
    after = list(read_episodes(resumed / "episodes.jsonl"))
    for update in range(3):
        assert sorted(e.seed for e in update_of(after, update)) == sorted(
            e.seed for e in update_of(before, update)
        )
    metrics = read_metrics(resumed)
    assert [(m["step"], m["horizon"]) for m in metrics] == [(0, 2), (1, 2), (2, 3)]
    assert metrics[2]["grad_norm"] > 0 and list(logged(training_cluster, resumed)) == [3]


ASYNC = {
    "colocate": ["trainer.v1.trainer_mode=gem_colocate_async"],
    "separate": [
        "trainer.v1.trainer_mode=gem_separate_async",
        "trainer.v1.separate_async.parameter_sync_step=1",
        "actor_rollout_ref.rollout.nnodes=1",
        "actor_rollout_ref.rollout.n_gpus_per_node=1",
        "actor_rollout_ref.rollout.checkpoint_engine.backend=file",
        "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=verl_on_cpu.weights",
    ],
}


@pytest.mark.setting("Asynchronous training", "works")
@pytest.mark.long
@pytest.mark.parametrize("logprobs", [True, False], ids=["logprobs", "no logprobs"])
@pytest.mark.parametrize("mode", ASYNC)
def test_async_trainer_trains(
    mode: str, logprobs: bool, training_cluster: Path, tmp_path: Path
) -> None:
    config = {
        "env_id": "game:GuessTheNumber-v0-easy",
        "seeds": 64,
        "gamma": 0.9,
        "max_turn_tokens": 12,
        "execution": "ray",
        "hosts": 1,
    }
    out = tmp_path / mode
    settings = [
        *ASYNC[mode],
        "trainer.total_training_steps=3",
        f"actor_rollout_ref.rollout.calculate_log_probs={logprobs}",
    ]
    run(out, config, settings, cpus=16)  # the hosts of the environments need some, too
    metrics = read_metrics(out)
    assert [m["step"] for m in metrics] == [0, 1, 2]
    assert all(m["failed"] == 0 for m in metrics)
    # a batch without a success has no gradient
    assert all((m["grad_norm"] > 0) == (m["advantage_abs"] > 0) for m in metrics)
    assert all(("logprob_gap" in m) is logprobs for m in metrics)
    episodes = list(read_episodes(out / "episodes.jsonl"))
    for update, line in enumerate(metrics):
        trained = update_of(episodes, update)
        assert len(trained) == line["episodes"] == 8
        by_hand = advantages(trained, "rebn", gamma=0.9)
        recorded = [e.final_info["advantages"] for e in trained]
        assert [a for numbers in recorded for a in numbers] == pytest.approx(
            [a for numbers in by_hand for a in numbers]
        )
    # later updates use later weights, and episodes that were not used are recorded, too
    versions = [max(e.turns[0].versions[0] for e in update_of(episodes, u)) for u in range(3)]
    assert versions[0] == 0 < versions[2]
    assert len(episodes) >= 24


UNEVEN = '''
from gem_core import Env


class Uneven(Env):
    """Pays what the sampled text decides, which also makes every third step fail."""

    execution = "inline"
    action_example = "anything"

    def on_reset(self, options):
        self.turns = 0
        return "Say anything.", {}

    def on_step(self, action):
        digest = sum(action.encode())
        if digest % 3 == 0 and action != self.action_example:
            raise RuntimeError("no such word")
        self.turns += 1
        return "Again.", float(digest % 7), self.turns == 2, False, {}
'''


@pytest.mark.setting("Data parallel", "works")
@pytest.mark.setting("DAPO filter", "works")
@pytest.mark.setting("Entropy", "works")
@pytest.mark.setting("Importance correction", "works")
@pytest.mark.setting("Packing", "works")
@pytest.mark.long
def test_two_processes_train_in_mini_batches_beside_failed_episodes(
    training_cluster: Path, tmp_path: Path
) -> None:
    """A mini-batch is two episodes, one per process. One without trained tokens would give NaN."""
    source = tmp_path / "uneven.py"
    source.write_text(UNEVEN)
    config = {"env_id": f"{source}:Uneven", "gamma": 0.9, "max_turn_tokens": 12}
    settings = [
        "trainer.n_gpus_per_node=2",
        "trainer.total_training_steps=2",
        "actor_rollout_ref.actor.ppo_mini_batch_size=1",
        "actor_rollout_ref.actor.entropy_coeff=0.01",
        "actor_rollout_ref.actor.use_dynamic_bsz=True",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=2048",
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True",
        "algorithm.filter_groups.enable=True",
        "algorithm.rollout_correction.rollout_is=token",
    ]
    run(tmp_path / "two", config, settings, cpus=16)
    metrics, log = read_metrics(tmp_path / "two"), logged(training_cluster, tmp_path / "two")
    assert [m["step"] for m in metrics] == [0, 1]
    assert sum(m["failed"] for m in metrics) > 0
    assert all(m["grad_norm"] > 0 for m in metrics), "NaN would be None"
    assert all(0.5 < log[step]["rollout_corr/rollout_is_mean"] < 2 for step in (1, 2))
    episodes = list(read_episodes(tmp_path / "two" / "episodes.jsonl"))
    for update in range(2):
        returns = defaultdict(set)
        for episode in update_of(episodes, update):
            returns[episode.seed].add(episode.total_reward)
        assert all(len(group) == 2 for group in returns.values()), "equal returns are dropped"


FAILS_IN_TRAINING = '''
from gem_core import Env


class Fails(Env):
    """Raises at its first step, except in the trial before training."""

    execution = "inline"
    action_example = "anything"

    def on_reset(self, options):
        return "Say anything.", {}

    def on_step(self, action):
        if action != "anything":
            raise RuntimeError("the disk is full")
        return "", 1.0, True, False, {}
'''


@pytest.mark.setting("Failing runs", "works")
@pytest.mark.long
def test_run_in_which_every_episode_fails_stops_with_the_traceback(
    training_cluster: Path, tmp_path: Path
) -> None:
    source = tmp_path / "fails.py"
    source.write_text(FAILS_IN_TRAINING)
    config = {"env_id": f"{source}:Fails", "max_turn_tokens": 12}
    with pytest.raises(EnvError, match="every episode of the last 3 updates failed") as raised:
        run(tmp_path / "run", config, ["trainer.total_training_steps=20"])
    assert "the disk is full" in str(raised.value) and 'fails.py", line' in str(raised.value)
    assert [m["failed"] for m in read_metrics(tmp_path / "run")] == [1.0] * 3
    assert all(m["grad_norm"] is None for m in read_metrics(tmp_path / "run"))
    assert len(list(read_episodes(tmp_path / "run" / "episodes.jsonl"))) == 24
