"""gem's trainers read episodes from verl's queue and reject a batch that differs from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from gem_conformance import CASES

from gem_core.adapter_kit.batch import trained_sequences
from gem_core.errors import BatchMismatchError, EnvError
from gem_core.types import Episode, StopReason
from gem_verl import batch
from gem_verl.batch import mean_per_turn, read_batch
from gem_verl.conformance import VerlHarness
from gem_verl.mini_batches import deal, optimizer_steps, padded_size
from gem_verl.recorder import Recorder
from gem_verl.trainer import GemTrainer, check_batch, with_successes

BY_NAME = {case.name: case for case in CASES}
EPISODES: tuple[Episode, ...] = BY_NAME["rewritten history"].episodes


class Queue:
    """Stub of verl's queue with one batch: one session per golden episode, and one padding."""

    def __init__(self) -> None:
        import pickle

        self.fields: dict[str, dict[str, Any]] = {}
        for session, episode in enumerate(EPISODES):
            for number, sequence in enumerate(trained_sequences(episode, 0)):
                response = torch.tensor(sequence.mask[sequence.prompt_length :])
                self.fields[f"uid_{session}_{number}"] = {
                    "input_ids": torch.tensor(sequence.ids),
                    "response_mask": response,
                    "loss_mask": response.clone(),
                    "extra_fields": {"gem": pickle.dumps(episode) if number == 0 else b""},
                }
        zero = torch.zeros(1, dtype=torch.int64)
        self.fields["pad_0_0"] = {
            "input_ids": zero,
            "response_mask": zero,
            "loss_mask": zero.clone(),
            "extra_fields": {},
        }

    @property
    def batch(self) -> Any:
        tags = [{"is_padding": key.startswith("pad")} for key in self.fields]
        return SimpleNamespace(keys=list(self.fields), tags=tags, partition_id="train")

    def kv_batch_get(
        self, keys: list[str], partition_id: str, select_fields: list[str]
    ) -> dict[str, list[Any]]:
        return {name: [self.fields[key][name] for key in keys] for name in select_fields}


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    queue = Queue()
    monkeypatch.setattr(batch, "tq", queue)
    return queue


def test_read_batch_returns_the_episodes_in_the_queue(queue: Queue) -> None:
    played = read_batch(queue.batch)
    assert tuple(played.episodes) == EPISODES
    assert played.episode_of == [0, 0, 1, 2, 3, 4, -1]
    check_batch(queue.batch, played)


def change_ids(queue: Queue) -> None:
    queue.fields["uid_1_0"]["input_ids"][-1] += 1


def change_prompt(queue: Queue) -> None:
    queue.fields["uid_1_0"]["input_ids"][0] += 1


def change_response_mask(queue: Queue) -> None:
    queue.fields["uid_2_0"]["response_mask"][0] = 0


def change_loss_mask(queue: Queue) -> None:
    queue.fields["uid_2_0"]["loss_mask"][0] = 0


def shift(queue: Queue) -> None:
    fields = queue.fields["uid_3_0"]
    fields["input_ids"] = torch.cat([fields["input_ids"], torch.zeros(1, dtype=torch.int64)])


def train_padding(queue: Queue) -> None:
    queue.fields["pad_0_0"]["response_mask"] = torch.ones(1, dtype=torch.int64)


@pytest.mark.parametrize(
    "change",
    [change_ids, change_prompt, change_response_mask, change_loss_mask, shift, train_padding],
)
def test_check_batch_rejects_changed_ids_or_mask(
    queue: Queue, change: Callable[[Queue], None]
) -> None:
    played = read_batch(queue.batch)
    change(queue)
    with pytest.raises(BatchMismatchError, match="of verl.s batch"):
        check_batch(queue.batch, played)


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ("uid_0_1", "1 sequences of the episodes are missing"),
        ("uid_0_0", "sequence uid_0_1 of verl's batch does not belong to an episode"),
    ],
)
def test_read_batch_rejects_a_lost_sequence(queue: Queue, lost: str, message: str) -> None:
    del queue.fields[lost]
    with pytest.raises(BatchMismatchError, match=message):
        read_batch(queue.batch)


def test_mean_advantage_of_a_turn_has_its_sign(queue: Queue) -> None:
    for fields in queue.fields.values():
        tokens = len(fields["response_mask"])
        fields["advantages"] = torch.full((tokens,), -0.5)
    means, absolute = mean_per_turn(queue.batch, read_batch(queue.batch))
    assert [len(own) for own in means] == [len(e.turns) for e in EPISODES]
    assert {a for own in means for a in own} == {-0.5}
    assert {a for own in absolute for a in own} == {0.5}


def test_trainer_checks_the_batch_before_the_loss(
    cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test masks one token in verl's real queue, before the trainer computes advantages."""
    import transfer_queue as tq

    harness = VerlHarness()
    put, calls = tq.kv_batch_put, []

    def put_and_change(
        keys: list[str], partition_id: str, fields: Any = None, **kwargs: Any
    ) -> Any:
        batch = put(keys=keys, partition_id=partition_id, fields=fields, **kwargs)
        if fields is not None and "old_log_probs" in fields.keys():  # noqa: SIM118 - a TensorDict
            masks = tq.kv_batch_get(
                keys=keys, partition_id=partition_id, select_fields=["response_mask"]
            )
            masks["response_mask"].values()[0] = 0
            put(keys=keys, partition_id=partition_id, fields=masks)
            calls.append(keys)
        return batch

    assert harness.trainer  # starts the queue
    monkeypatch.setattr(tq, "kv_batch_put", put_and_change)
    with pytest.raises(BatchMismatchError, match="response_mask"):
        harness.train(BY_NAME["ragged turns"])
    assert len(calls) == 1


def test_advantages_are_written_once(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """verl's own method writes gem's advantages to its real queue."""
    import transfer_queue as tq
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

    harness, put, estimators = VerlHarness(), tq.kv_batch_put, set(ADV_ESTIMATOR_REGISTRY)
    written: list[str] = []

    def put_and_note(*args: Any, fields: Any = None, **kwargs: Any) -> Any:
        written.extend(() if fields is None else fields.keys())
        return put(*args, fields=fields, **kwargs)

    assert harness.trainer  # starts the queue
    monkeypatch.setattr(tq, "kv_batch_put", put_and_note)
    sequences = harness.train(BY_NAME["ragged turns"])
    assert any(advantage for sequence in sequences for advantage in sequence.advantages)
    assert written.count("advantages") == written.count("returns") == 1
    assert harness.trainer.config.algorithm.adv_estimator == "gem_rebn"
    assert set(ADV_ESTIMATOR_REGISTRY) == estimators


@pytest.mark.parametrize("case", ["ragged turns", "gae"])
def test_workers_read_the_tensors_of_a_batch(
    cluster: None, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Episodes and dataset rows stay in verl's real queue."""
    import transfer_queue as tq

    harness, compute, read = VerlHarness(), GemTrainer._compute_advantage, {}
    steps = (
        "_compute_old_log_prob",
        "_compute_ref_log_prob",
        "_compute_values",
        "_update_critic",
        "_update_actor",
    )

    def reader(step: str) -> Callable[..., Any]:
        def read_as_a_worker(trainer: Any, batch: Any, metrics: Any) -> Any:
            read[step] = tq.kv_batch_get_by_meta(batch)
            return batch

        return read_as_a_worker

    def compute_and_step(trainer: Any, batch: Any, metrics: Any) -> Any:
        batch = compute(trainer, batch, metrics)
        trainer.critic_wg = SimpleNamespace(train_mini_batch=print)
        trainer.actor_rollout_wg = SimpleNamespace(update_actor=print)
        with monkeypatch.context() as patch:
            for step in steps:
                before = batch.fields
                patch.setattr(type(trainer).__mro__[2], step, reader(step))
                getattr(trainer, step)(batch, metrics=metrics)
                assert batch.fields == before
        read["all"] = tq.kv_batch_get_by_meta(batch)
        return batch

    monkeypatch.setattr(GemTrainer, "_compute_advantage", compute_and_step)
    harness.train(BY_NAME[case])
    tensors = {n for n, field in read.pop("all").items() if isinstance(field, torch.Tensor)}
    assert {"input_ids", "responses", "response_mask", "old_log_probs", "advantages"} <= tensors
    for step in steps:
        assert set(read[step].keys()) == tensors | {"multi_modal_inputs"}, step


def test_metrics_file_has_one_line_per_update(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gem_verl import GemConfig

    path = tmp_path / "metrics.jsonl"
    config = GemConfig(
        "game:GuessTheNumber-v0-easy", seeds=64, gamma=0.9, metrics=str(path), horizon="4,7@1"
    )
    harness = VerlHarness(config)
    harness.train(BY_NAME["ragged turns"])
    monkeypatch.setattr(
        type(harness.trainer).__mro__[2], "_compute_metrics", lambda *args, **kwargs: None
    )
    harness.trainer._compute_metrics(
        "batch", {**harness.metrics, "actor/pg_loss": 0.25, "actor/grad_norm": 2.0}
    )
    (line,) = map(json.loads, path.read_text().splitlines())
    turns = [turn for episode in BY_NAME["ragged turns"].episodes for turn in episode.turns]
    assert line.pop("seconds") >= 0
    by_turn = {name: value for name, value in line.items() if name.startswith("turn/")}
    assert by_turn["turn/0/return"] == line["return"] == 0.5
    assert all(harness.metrics[f"gem/{name}"] == value for name, value in by_turn.items())
    assert {name: value for name, value in line.items() if name not in by_turn} == {
        "step": 0,
        "return": 0.5,
        "turns": 2.5,
        "failed": 0.0,
        "episodes": 4,
        "loss": 0.25,
        "grad_norm": 2.0,
        "horizon": 4.0,
        "success": None,
        "tokens": sum(len(turn.action_ids) for turn in turns),
        "advantage_abs": pytest.approx(harness.metrics["gem/advantage_abs"]),
        "logprob_gap": 0.0,  # the harness gives the trainer the sampler's logprobs
        "logprob_gap_p99": 0.0,
    }


@pytest.mark.parametrize(
    ("episodes", "sequences", "steps", "mini_batch"),
    [
        (8, 8, 1, 8),  # one sequence per episode: verl's own size
        (8, 20, 1, 20),
        (16, 40, 2, 20),
        (7, 7, 1, 8),  # a failed prompt
        (8, 16, 1, 16),  # eight failed episodes do not add a step
        (0, 16, 1, 16),  # nothing is trained
        (32, 33, 4, 12),  # one rewritten context does not remove a step
        (24, 32, 3, 12),
        (32, 9, 4, 4),
    ],
)
def test_optimizer_steps_depend_on_trained_episodes(
    episodes: int, sequences: int, steps: int, mini_batch: int
) -> None:
    """A mini-batch of 8 trained episodes, in micro-batches of 4 sequences."""
    assert optimizer_steps(8, episodes) == steps
    assert padded_size(sequences, [steps], unit=4) == steps * mini_batch


def test_batch_fits_the_steps_of_actor_and_critic() -> None:
    assert padded_size(50, [4, 3], unit=2) == 72


def test_loss_of_a_mini_batch_divides_by_its_trained_sequences() -> None:
    """verl divides by `global_batch_size`, which includes padding and failed episodes."""
    sizes = []
    workers = SimpleNamespace(update=lambda batch: sizes.append(batch.extra_info))
    trainer = SimpleNamespace(_trained_keys={"1_0_0", "1_1_0", "2_0_0"})
    with GemTrainer._counting_trained(cast(Any, trainer), workers, "update", 2):
        workers.update(SimpleNamespace(extra_info={"global_batch_size": 8, "mini_batch_size": 8}))
    assert sizes == [{"global_batch_size": 1.5, "mini_batch_size": 8}]


@pytest.mark.setting("Failing runs", "works")
@pytest.mark.parametrize("broken", [True, False], ids=["engine errors", "failed episodes"])
def test_run_ends_if_verl_only_drops_prompts(monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    """verl replaces prompts with an error, and groups of equal rewards, without end."""
    failed = replace(EPISODES[0], stop=StopReason.ENV_ERROR)
    played: list[Episode] = [] if broken else [failed]
    monkeypatch.setattr("gem_verl.recorder.episodes_at", lambda keys, partition_id: played)
    cleared: list[set[str]] = []
    buffer = SimpleNamespace(
        partitions={"train": {}},
        failure_keys={"train": {"1", "2", "3"} if broken else set()},
        sample=lambda: (SimpleNamespace(partition_id="train", keys=[]), {}),
        _clear_groups=lambda partition_id, uids: cleared.append(uids),
    )
    Recorder(None, max_failed=4).watch(buffer)
    buffer._clear_groups("train", {"1", "2", "3"})
    buffer.sample()
    buffer._clear_groups("train", {"1", "2", "3"})
    with pytest.raises(EnvError, match="no episode of the last 6 prompts could be used"):
        buffer._clear_groups("train", {"1", "2", "3"})
    assert len(cleared) == 2
    played[:] = [EPISODES[0], failed]  # its group was dropped for equal rewards
    for _ in range(3):
        buffer._clear_groups("train", {"1", "2", "3"})


def test_validation_counts_successes_as_training_does() -> None:
    """Of `a`, one episode succeeded, one has no verdict, one failed; `b` reports no success."""
    infos = {
        "success": [1.0, None, None, 0.0, None],
        "judged": [1.0, 0.0, None, 0.0, 0.0],
        "return": [1.0, 0.0, None, 0.5, 0.5],
    }
    counted = with_successes(infos, ["a", "a", "a", "b", "b"])
    assert counted == {"success": [1.0, 0.0, None, None, None], "return": infos["return"]}
    assert with_successes({"return": [1.0]}, ["a"]) == {"return": [1.0]}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("trained", [{0}, {0, 1, 2, 3}, {1, 7, 8, 9}, {12, 13, 14, 15}])
def test_every_mini_batch_has_trained_sequences(trained: set[int], ranks: int) -> None:
    """16 sequences, four optimizer steps; each rank has its half of every mini-batch."""
    order = deal([i in trained for i in range(16)], ranks, 4)
    shares = [order[rank * 16 // ranks :][: 16 // ranks] for rank in range(ranks)]
    assert [sorted(share) for share in shares] == [
        list(range(rank * 16 // ranks, (rank + 1) * 16 // ranks)) for rank in range(ranks)
    ]
    size = 4 // ranks
    steps = [{i for s in shares for i in s[step * size :][:size]} for step in range(4)]
    assert sum(bool(step & trained) for step in steps) == min(len(trained), 4)


@pytest.mark.parametrize("trained", [set(), {0, 1, 2}, set(range(6))])
def test_no_sequence_is_lost_if_the_steps_are_uneven(trained: set[int]) -> None:
    assert sorted(deal([i in trained for i in range(6)], 1, 4)) == list(range(6))
