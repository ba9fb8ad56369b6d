"""Played batches, the record log, generations of an engine, and checks of fixed settings."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import gem_oat
from gem_core import BatchMismatchError, Episode, FinishReason, StopReason, Turn
from gem_core.adapter_kit.batch import trained_sequences
from gem_core.adapter_kit.engine import generation_of, vllm_logprobs
from gem_core.adapter_kit.played import PlayedBatch
from gem_core.adapter_kit.record_log import RecordLog
from gem_core.adapter_kit.settings import few_seeds, fixed, warn_if_tied
from gem_core.adapter_kit.update_log import UpdateLog
from gem_core.errors import EngineError
from gem_core.records.file import read_episodes
from gem_core.training.config import TrainingConfig
from gem_core.training.metrics import BatchMetrics
from gem_core.training.sequences import padding_sequence

GAME = "game:GuessTheNumber-v0-easy"


@dataclass
class Config(TrainingConfig):
    adapter = gem_oat.ADAPTER


def turn(added: int, sampled: int, reward: float, restarted: bool = False) -> Turn:
    return Turn((), "a", reward, tuple(range(added)), restarted, (9,) * sampled, (-0.5,) * sampled)


ONE = Episode(GAME, 0, (turn(4, 2, 0.0, True), turn(3, 1, 1.0)), StopReason.TERMINATED)
SPLIT = Episode(GAME, 1, (turn(3, 2, 0.5, True), turn(4, 1, 0.0, True)), StopReason.TURN_LIMIT)
FAILED = Episode(GAME, 2, (turn(2, 1, 0.0, True),), StopReason.ENV_ERROR)


@pytest.fixture
def batch() -> PlayedBatch:
    pairs = [(e, s) for e in (ONE, replace(ONE), SPLIT, FAILED) for s in trained_sequences(e, 7)]
    return PlayedBatch.of(pairs)


def test_equal_episodes_are_two_and_sequences_know_theirs(batch: PlayedBatch) -> None:
    assert len(batch.episodes) == 4
    assert batch.episode_of == [0, 1, 2, 2, 3]


def test_values_are_read_before_each_turn_and_after_the_end(batch: PlayedBatch) -> None:
    # ONE: 4 prompt tokens, then the response: 2 sampled, 3 observed, 1 sampled
    numbers = [[float(10 * i + j) for j in range(9)] for i in range(5)]
    assert batch.values(numbers) == [[0.0, 5.0, 8.0], [10.0, 15.0, 18.0], [20.0, 30.0, 38.0], []]


def test_sequences_of_an_episode_may_be_apart_and_in_any_order(batch: PlayedBatch) -> None:
    order = [3, 0, 2]  # the second sequence of SPLIT, ONE, the first sequence of SPLIT
    padding = padding_sequence((1, 2), 7)
    apart = PlayedBatch(
        [ONE, SPLIT], [*(batch.sequences[i] for i in order), padding], [1, 0, 1, -1]
    )
    assert apart.places == [[1], [2, 0]]
    numbers = [[float(10 * i + j) for j in range(9)] for i in range(4)]
    assert apart.values(numbers) == [[10.0, 15.0, 18.0], [20.0, 0.0, 8.0]]
    assert apart.critic_masks()[3] == [0]


def test_critic_trains_the_first_token_of_each_trained_turn(batch: PlayedBatch) -> None:
    assert batch.critic_masks() == [[1, 0, 0, 0, 0, 1], [1, 0, 0, 0, 0, 1], [1, 0], [1], [0]]


def test_numbers_per_turn_become_numbers_per_response_token(batch: PlayedBatch) -> None:
    per_turn = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], []]
    one = [1.0, 1.0, 0.0, 0.0, 0.0, 2.0]
    assert batch.per_token(per_turn) == [one, [3.0, 3.0, 0, 0, 0, 4.0], [5.0, 5.0], [6.0], [0.0]]
    padding = PlayedBatch([], [padding_sequence((1, 2), 7)], [-1])
    assert padding.per_token([]) == [[0.0]]


def test_returns_are_discounted_or_the_targets_of_the_critic(batch: PlayedBatch) -> None:
    config = Config(GAME, gamma=0.5)
    assert batch.returns(config)[0] == [0.5, 1.0]
    gae = Config(GAME, advantage="gae", gamma=0.5, estimator_kwargs={"lam": 1.0})
    values = [[0.3, 0.2], [0.3, 0.2], [0.1, 0.1, 0.0], []]
    assert batch.returns(gae, values)[0] == pytest.approx([0.5, 1.0])


def test_check_compares_ids_and_loss_mask_and_rejects_trained_padding(batch: PlayedBatch) -> None:
    sequence = batch.sequences[0]
    response = sequence.mask[sequence.prompt_length :]
    batch.check_sequence(0, sequence.ids, response)
    batch.check_sequence(0, (*sequence.ids, 5, 5), (*response, 0, 0))
    batch.check_sequence(5, (1, 2, 3), (0.0, 0.0))
    batch.check_sequence(4, (1, 2, 3), (0.0, 0.0))  # a failed episode
    for i, ids, mask in (
        (0, (8, *sequence.ids[1:]), response),
        (0, sequence.ids, (0, *response[1:])),
        (5, (1, 2, 3), (0.0, 1.0)),
        (4, (1, 2, 3), (0.0, 1.0)),
    ):
        with pytest.raises(BatchMismatchError, match="is not what was played"):
            batch.check_sequence(i, ids, mask)


def test_record_log_writes_each_episode_once(tmp_path: Path) -> None:
    path = str(tmp_path / "e.jsonl")
    log = RecordLog(path)
    log.played([ONE, SPLIT])
    log.trained([ONE], [[0.5, -0.5]], 4)
    log.evaluated([replace(ONE, seed=9)])
    assert [e.seed for e in log.evaluation] == [9]
    log.close()
    infos = {e.seed: e.final_info for e in read_episodes(path)}
    assert infos == {0: {"advantages": [0.5, -0.5], "update": 4}, 9: {"evaluation": True}, 1: {}}
    RecordLog(None).played([ONE])  # records nothing


def test_generation_has_one_logprob_per_token_and_a_finish_reason() -> None:
    cut = generation_of([1, 2], [-0.1, -0.2], cut=True, turn_end=7, versions=(3, 4))
    assert (cut.finish, cut.versions) == (FinishReason.LENGTH, (3, 4))
    assert generation_of([1, 7], None, cut=True, turn_end=7).finish is FinishReason.STOP
    assert generation_of([], (), cut=False, turn_end=7).finish is FinishReason.EMPTY
    with pytest.raises(EngineError, match="1 logprobs for 2 tokens"):
        generation_of([1, 2], [-0.1], cut=False, turn_end=7)


def test_logprobs_of_vllm_are_those_of_the_sampled_tokens() -> None:
    likely, sampled = SimpleNamespace(logprob=-0.1), SimpleNamespace(logprob=-2.0)
    assert vllm_logprobs([5, 6], [{4: likely, 5: sampled}, {6: likely}]) == (-2.0, -0.1)
    assert vllm_logprobs([], None) == ()
    for wrong in (None, [{5: likely}], [{5: likely}, {7: likely}], [{5: likely}, None]):
        with pytest.raises(EngineError, match="no logprob for one of 2 sampled tokens"):
            vllm_logprobs([5, 6], wrong)


def test_fixed_settings_name_the_value_and_the_remedy() -> None:
    settings = SimpleNamespace(loss=SimpleNamespace(kl=True, clip=0.2))
    expected = SimpleNamespace(loss=SimpleNamespace(kl=False, clip=0.2))
    remedies = {"loss.kl": "set it to False", "loss.clip": "remove it"}
    (kl, message), (clip, _) = fixed(settings, expected, remedies)
    assert kl and not clip
    assert message == "loss.kl=True is not supported: set it to False"


def test_fixed_settings_reject_one_value_and_skip_unknown_names() -> None:
    remedies = {"loss.kind=gspo": "use ppo", "loss.new": "remove it"}
    settings = [SimpleNamespace(loss=SimpleNamespace(kind=kind)) for kind in ("gspo", "ppo")]
    rejected = [[wrong for wrong, _ in fixed(s, settings[1], remedies)] for s in settings]
    assert rejected == [[True, False], [False, False]]
    assert fixed(settings[0], settings[1], remedies)[0][1].startswith("loss.kind=gspo is not supp")


def test_common_checks_name_the_trainers_setting() -> None:
    rejected, message = few_seeds(4, 8, "batch_size")
    assert rejected and "batch_size=8 is above the number of seeds, 4" in message
    assert not few_seeds(8, 8, "batch_size")[0]


def test_tied_weights_warn() -> None:
    with pytest.warns(UserWarning, match=r"save_untied\(model, folder\)"):
        warn_if_tied(SimpleNamespace(tie_word_embeddings=True), "the trainer")
    warn_if_tied(SimpleNamespace(tie_word_embeddings=False), "the trainer")


def test_files_do_not_depend_on_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = Config(GAME, record="a/e.jsonl").with_absolute_paths()
    assert (config.record, config.metrics) == (str(tmp_path / "a/e.jsonl"), None)


def test_metrics_have_the_horizon(tmp_path: Path) -> None:
    config = Config(GAME, horizon="2,3@2", metrics=str(tmp_path / "metrics.jsonl"))
    log = UpdateLog.of(config)
    for step in range(3):
        log.write(step, BatchMetrics.of([ONE]))
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["horizon"] for line in lines] == [2, 2, 3]
