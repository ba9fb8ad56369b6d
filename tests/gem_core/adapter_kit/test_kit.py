"""Adapter kit: the code that all adapters share."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gem_trl
from gem_core import (
    BatchMismatchError,
    ConfigError,
    Env,
    EnvError,
    Episode,
    Failure,
    HorizonSchedule,
    MissingDependencyError,
    RandomPlayer,
    StopReason,
    Turn,
    TurnStatus,
    hookimpl,
    register,
)
from gem_core.adapter_kit.batch import (
    as_trained,
    check_sequence,
    one_sequence,
    sequences_or_padding,
)
from gem_core.adapter_kit.exports import lazy_exports
from gem_core.adapter_kit.patching import patched
from gem_core.adapter_kit.settings import few_samples, long_turns, model_context, reject
from gem_core.adapter_kit.trainer_rollout import TrainerRollout, try_environment
from gem_core.adapter_kit.update_log import UpdateLog
from gem_core.env.registry import environments
from gem_core.plugins.manager import register_plugin, unregister_plugin
from gem_core.training.config import TrainingConfig
from gem_core.training.metrics import BatchMetrics

GAME = "game:GuessTheNumber-v0-easy"


@dataclass
class Config(TrainingConfig):
    adapter = gem_trl.ADAPTER


def episode(
    *rewards: float, stop: StopReason = StopReason.TERMINATED, restarted: tuple[int, ...] = (0,)
) -> Episode:
    turns = tuple(
        Turn(
            (),
            "a",
            r,
            added_ids=(1, 2),
            action_ids=(3, 4),
            logprobs=(-1.0, -2.0),
            restarted=i in restarted,
        )
        for i, r in enumerate(rewards)
    )
    return Episode(GAME, 7, turns, stop, final_info={"success": True})


def test_reject_reports_all_problems_at_once() -> None:
    reject([(False, "fine"), (None, "fine too")])
    with pytest.raises(ConfigError) as one:
        reject([(True, "set a to 1"), (0, "b")])
    assert str(one.value) == "set a to 1"
    with pytest.raises(ConfigError) as two:
        reject([(True, "set a to 1"), (False, "b"), (3, "set c to 2")])
    assert str(two.value) == "2 settings are rejected:\n- set a to 1\n- set c to 2"


def test_shared_rejections_name_the_trainers_setting() -> None:
    assert not few_samples(Config(GAME), 1, "n")[0]
    rejected, message = few_samples(Config(GAME, advantage="grpo"), 1, "num_generations")
    assert rejected
    assert "num_generations is 1; set it to 2 or more" in message
    assert not long_turns(Config(GAME), 8, "max_len")[0]
    rejected, message = long_turns(Config(GAME, max_turn_tokens=9), 8, "max_len")
    assert rejected
    assert "max_turn_tokens=9 is above max_len=8" in message
    rejected, message = long_turns(Config(GAME, max_turn_tokens=9), None, "max_len")
    assert rejected
    assert message.startswith("max_len=None does not limit everything after the prompt; set it")


def test_model_context_is_that_of_the_text_config() -> None:
    text = SimpleNamespace(max_position_embeddings=2048)
    assert model_context(text) == 2048
    assert (
        model_context(SimpleNamespace(get_text_config=lambda: text, max_position_embeddings=1))
        == 2048
    )
    assert model_context(SimpleNamespace()) is None


def test_a_failed_episode_becomes_one_padding_sequence() -> None:
    (padding,) = sequences_or_padding(episode(1.0, stop=StopReason.ENV_ERROR), 9)
    assert padding.ids == (1, 2, 9)
    assert not any(padding.mask)
    (empty,) = sequences_or_padding(episode(stop=StopReason.ENV_ERROR), 9)
    assert empty.ids == (9, 9)


def test_one_sequence_rejects_a_rewritten_history() -> None:
    assert one_sequence(episode(1.0, 0.0), 9, "X").ids == (1, 2, 3, 4, 1, 2, 3, 4)
    with pytest.raises(ConfigError, match="has 2 sequences.*X takes one per episode"):
        one_sequence(episode(1.0, 0.0, restarted=(0, 1)), 9, "X")


@pytest.mark.parametrize(
    ("ids", "mask"),
    [
        ([1, 2, 3, 5, 0], [0, 0, 1, 1, 0]),
        ([1, 2, 3, 4, 0], [0, 0, 1, 0, 0]),
        ([1, 2, 3, 4, 0], [0, 0, 1, 1, 1]),
        ([1, 2], [0, 0]),
    ],
    ids=["another id", "a token missing in the mask", "padding trained", "cut"],
)
def test_check_sequence_detects_a_changed_batch(ids: list[int], mask: list[int]) -> None:
    check_sequence("sequence 0", [1, 2, 3, 4, 0], [0, 0, 1, 1, 0], [1, 2, 3, 4], [0, 0, 1, 1])
    with pytest.raises(
        BatchMismatchError, match="sequence 0 is not what was played.*where 2 were sampled"
    ):
        check_sequence("sequence 0", ids, mask, [1, 2, 3, 4], [0, 0, 1, 1])


def test_the_record_of_an_episode_has_its_advantages_as_trained() -> None:
    played = episode(1.0, 0.0)
    masked = replace(played.turns[1], status=TurnStatus.MASKED)
    played = replace(played, turns=(played.turns[0], masked), final_info={"success": True})
    recorded = as_trained(played, [0.5, 0.0], update=3)
    assert recorded.final_info == {"success": True, "advantages": [0.5, None], "update": 3}
    assert played.final_info == {"success": True}


class Framework:
    @staticmethod
    def compute(batch: Any, step: int) -> str:
        return "original"


class Child(Framework):
    pass


def test_patched_restores_the_original_and_checks_the_signature() -> None:
    with patched(Framework, "compute", lambda batch, step: "ours", "batch step") as original:
        assert Framework.compute(None, 0) == "ours"
        assert original(None, 0) == "original"
    assert Framework.compute(None, 0) == "original"
    with pytest.raises(RuntimeError), patched(Framework, "compute", None):
        raise RuntimeError
    assert Framework.compute(None, 0) == "original"
    with pytest.raises(
        ConfigError, match=r"Framework.compute takes \(batch step\).*written for \(batch\)"
    ):
        patched(Framework, "compute", None, "batch").__enter__()
    with pytest.raises(ConfigError, match="Framework.missing does not exist"):
        patched(Framework, "missing", None).__enter__()
    assert Framework.compute(None, 0) == "original"


def test_patching_an_inherited_name_does_not_change_the_base() -> None:
    with patched(Child, "compute", lambda *_: "ours"):
        assert Child.compute(None, 0) == "ours"
        assert Framework.compute(None, 0) == "original"
    assert "compute" not in vars(Child)


def test_lazy_exports_import_on_access() -> None:
    get = lazy_exports(gem_trl.ADAPTER, {"ADAPTER": "__init__", "gone": "no_such_module"})
    assert get("ADAPTER") == gem_trl.ADAPTER
    with pytest.raises(AttributeError, match="module 'gem_trl' has no attribute 'other'"):
        get("other")
    with pytest.raises(MissingDependencyError, match=r"gem_trl.gone needs.*\.\[trl\]"):
        get("gone")


def test_update_log_writes_a_line_and_sends_the_event(tmp_path: Path) -> None:
    sent: list[tuple[int, Any]] = []

    class Listener:
        @hookimpl
        def update_end(self, step: int, metrics: Any) -> None:
            sent.append((step, metrics))

    register_plugin(Listener(), "listener")
    try:
        log = UpdateLog(str(tmp_path / "metrics.jsonl"))
        batch = BatchMetrics.of(
            [episode(1.0, 0.0), episode(stop=StopReason.ENV_ERROR)], [[0.25, -0.75], []]
        )
        log.write(0, batch, loss=0.25)
        # without a metrics file; other ranks do not send it
        UpdateLog(None).write(1, batch, loss=float("nan"))
        UpdateLog.of(Config(GAME)).write(2, batch)
        UpdateLog.of(Config(GAME, metrics=str(tmp_path)), write=False).write(3, batch)
    finally:
        unregister_plugin("listener")
    (line,) = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert line.pop("seconds") >= 0
    assert line == {
        "step": 0,
        "success": 1.0,
        "return": 1.0,
        "turns": 2.0,
        "failed": 0.5,
        "episodes": 2,
        "tokens": 4,
        "advantage_abs": 0.5,
        "loss": 0.25,
        "turn/0/advantage_abs": 0.25,
        "turn/0/return": 1.0,
        "turn/0/success": 1.0,
        "turn/0/tokens": 2.0,
        "turn/1/advantage_abs": 0.75,
        "turn/1/return": 0.0,
        "turn/1/success": 1.0,
        "turn/1/tokens": 2.0,
    }
    assert [step for step, _ in sent] == [0, 1, 2]
    for _, metrics in sent:
        assert metrics.pop("seconds") >= 0
    del line["step"]
    assert [metrics for _, metrics in sent] == [
        line,
        {**line, "loss": None},
        {name: value for name, value in line.items() if name != "loss"},
    ]


def test_a_config_round_trips_through_plain_data() -> None:
    config = Config(
        GAME,
        seeds=[1, 2],
        gamma=0.9,
        horizon=HorizonSchedule((4, 7), 80),
        wrappers="react",
        tools=(),
    )
    plain = config.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    again = Config.from_dict(plain)
    assert again.train_seeds == [1, 2]
    assert again.schedule == config.schedule
    assert (again.gamma, again.wrappers) == (0.9, "react")
    assert Config(GAME).to_dict() == {"env_id": GAME}
    with pytest.raises(
        ConfigError,
        match="data.gem has unknown fields: gama, x; did you mean 'gamma' instead of 'gama'",
    ):
        Config.from_dict({"env_id": GAME, "gama": 1, "x": 2}, "data.gem")
    with pytest.raises(ConfigError, match="data.gem has no env_id"):
        Config.from_dict({"gamma": 1.0}, "data.gem")
    with pytest.raises(ConfigError, match="as plain data.*register wrappers"):
        Config(GAME, wrappers=[lambda env: env]).to_dict()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("gamma", "0.9", "gamma must be a number between 0 and 1"),
        ("max_turn_tokens", 0, "max_turn_tokens must be an integer >= 1"),
        ("max_context", -5, "max_context must be"),
        ("seeds", "12", "seeds must be a number of seeds, or a list"),
        ("seeds", 1e3, "seeds must be"),
        ("seeds", [-1], "each of seeds must be an integer >= 0"),
        ("eval_seeds", True, "eval_seeds must be"),
        ("retries", "2", "retries must be an integer"),
        ("step_deadline", "5", "step_deadline must be a number above 0"),
    ],
)
def test_a_config_rejects_invalid_values(field: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config(GAME, **{field: value})


FAILED = episode(stop=StopReason.ENV_ERROR)


def test_a_run_stops_after_updates_in_which_every_episode_failed() -> None:
    failure = Failure("KeyError", "'x'", "step", "Traceback\n  File lock.py, line 7")
    failed = BatchMetrics.of([replace(FAILED, failure=failure)] * 2)
    played = BatchMetrics.of([episode(1.0), episode(0.0)])
    log = UpdateLog(None, max_failed_updates=2)
    log.write(0, failed)
    log.write(1, played)
    log.write(2, failed)
    with pytest.raises(EnvError, match=r"last 2 updates failed(.|\n)*lock.py, line 7"):
        log.write(3, failed)
    no_room = Episode("x:Y", 0, (), StopReason.CONTEXT_FULL)
    full = BatchMetrics.of([no_room, replace(FAILED, failure=failure)])
    log = UpdateLog(None, max_failed_updates=2)
    log.write(0, full)
    with pytest.raises(EnvError, match="the first prompt exceeds the context limit"):
        log.write(1, full)
    patient = UpdateLog(None, max_failed_updates=0)
    for step in range(10):
        patient.write(step, failed)


def test_updates_that_teach_nothing_warn_with_the_likely_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = UpdateLog(None, estimator="grpo")
    for step in range(5):
        log.write(step, BatchMetrics.of([episode(0.0), episode(0.0)], [[0.0], [0.0]]))
    assert len(caplog.records) == 3, "the first, second and fourth time"
    assert "the episodes of each seed have equal returns (mean return 0)" in caplog.text
    caplog.clear()
    UpdateLog(None).write(0, BatchMetrics.of([FAILED, FAILED, episode(1.0)], [[], [], [1.0]]))
    assert "2 of 3 episodes failed" in caplog.text
    caplog.clear()
    UpdateLog(None).write(0, BatchMetrics.of([episode(1.0), episode(0.0)], [[1.0], [-1.0]]))
    assert not caplog.records


class Broken(Env):
    def on_reset(self, options: Any) -> Any:
        return "go", {}

    def on_step(self, action: str) -> Any:
        return "done", float("nan"), True, False, {}


def test_an_environment_is_tried_before_training(batch_ends: list[list[Episode]]) -> None:
    register("test:Broken-v0", Broken)
    try:
        with pytest.raises(EnvError, match="test:Broken-v0 failed with seed 5(.|\n)*Traceback"):
            try_environment(Config("test:Broken-v0", seeds=[5]))
    finally:
        environments.remove("test:Broken-v0")
    try_environment(Config(GAME))
    assert batch_ends == [], "plugins see only episodes of the training"
    with TrainerRollout(Config(GAME, execution="process")) as rollout:
        rollout.configure(RandomPlayer())
        (played,) = rollout.run_batch([Config(GAME, execution="process").task(3)])
    assert not played.failed
