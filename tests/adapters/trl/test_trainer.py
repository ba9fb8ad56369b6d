"""Training with the real GRPOTrainer: advantages per token, and rejected settings."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import wraps
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.gmpo import GMPOTrainer
from worlds import ECHO, MOODY, Echo

from gem_core.errors import BatchMismatchError, ConfigError, UnknownNameError
from gem_core.records.file import read_episodes
from gem_core.training.advantage import advantages
from gem_core.training.metrics_file import read_metrics
from gem_core.training.sequences import TokenSequence, token_sequences
from gem_core.types import FinishReason, TurnStatus
from gem_trl import GemAdvantages, GemConfig, GemGRPOTrainer, GemRollout, train, trainer_kwargs
from gem_trl.config import check_settings
from gem_trl.trainer import check_batch
from gem_trl.updates import updates_of

MATRIX: dict[str, dict[str, Any]] = {
    "two iterations over two steps": {
        "steps_per_generation": 2,
        "num_iterations": 2,
        "max_steps": 4,
    },
    "gradient accumulation": {"gradient_accumulation_steps": 2},
    "KL in the loss": {"beta": 0.04},
    "off-policy mask": {"off_policy_mask_threshold": 0.5},
    "high-entropy tokens only": {"top_entropy_quantile": 0.5},
}
if "entropy_coef" in GRPOConfig.__dataclass_fields__:  # not in TRL 1.10
    MATRIX["entropy bonus"] = {"entropy_coef": 0.01}


def spy(trainer: Any) -> list[tuple[Any, Any, Any]]:
    """Return a list that collects (advantages, loss mask, ids) of every call of the loss."""
    calls: list[tuple[Any, Any, Any]] = []
    inner = trainer._compute_loss

    def compute_loss(model: Any, inputs: Any) -> Any:
        mask = inputs["completion_mask"] * inputs["tool_mask"]
        calls.append((inputs["advantages"], mask, inputs["completion_ids"]))
        return inner(model, inputs)

    trainer._compute_loss = compute_loss
    return calls


@pytest.mark.setting("Entropy", "works")
@pytest.mark.parametrize("settings", MATRIX.values(), ids=MATRIX.keys())
def test_settings_of_the_loss_accept_advantages_per_token(
    make_trainer: Callable[..., Any], settings: dict[str, Any]
) -> None:
    trainer = make_trainer(GemConfig(ECHO, seeds=16, max_turn_tokens=6), **settings)
    before = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
    calls = spy(trainer)
    trainer.train()
    for token_advantages, mask, ids in calls:
        assert token_advantages.shape == ids.shape
        assert token_advantages[mask == 0].abs().sum() == 0
    assert any((token_advantages != 0).any() for token_advantages, _, _ in calls)
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())
    assert any(not torch.equal(before[n], p) for n, p in trainer.model.named_parameters())


def test_mixin_works_in_a_custom_trainer(make_trainer: Callable[..., Any]) -> None:
    class CustomTrainer(GemAdvantages, GRPOTrainer):
        pass

    norms = []
    for trainer_class in (GemGRPOTrainer, CustomTrainer):
        config = GemConfig(ECHO, seeds=16, max_turn_tokens=6)
        trainer = make_trainer(config, trainer_class, seed=3)
        trainer.train()
        norms.append(trainer.state.log_history[0]["grad_norm"])
    assert norms[0] == norms[1] > 0


def test_loss_gets_the_played_ids_and_their_advantages(
    make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    config = GemConfig(
        ECHO, seeds=16, max_turn_tokens=6, gamma=0.9, record=str(tmp_path / "episodes.jsonl")
    )
    trainer = make_trainer(config, per_device_train_batch_size=8, shuffle_dataset=False)
    calls = spy(trainer)
    trainer.train()
    episodes = list(read_episodes(tmp_path / "episodes.jsonl"))
    assert len(episodes) == 8 and {len(e.turns) for e in episodes} > {1}
    expected = sorted(
        (
            sequence.ids[sequence.prompt_length :],
            sequence.mask[sequence.prompt_length :],
            tuple(sequence.broadcast(per_turn))[sequence.prompt_length :],
        )
        for episode, per_turn in zip(episodes, advantages(episodes, "rebn", gamma=0.9))
        for sequence in token_sequences(episode)
    )
    for episode, per_turn in zip(episodes, advantages(episodes, "rebn", gamma=0.9)):
        assert episode.final_info["advantages"] == pytest.approx(per_turn)
        assert episode.final_info["update"] == 0
    ((token_advantages, mask, ids),) = calls
    assert len(expected) == len(ids)
    trained = []
    for i in range(len(ids)):
        length = max(t for t in range(ids.shape[1]) if mask[i, t]) + 1
        trained.append(
            (
                tuple(ids[i, :length].tolist()),
                tuple(mask[i, :length].tolist()),
                tuple(token_advantages[i, :length].tolist()),
            )
        )
    for actual, wanted in zip(sorted(trained), expected):
        assert actual[:2] == wanted[:2]
        assert actual[2] == pytest.approx(wanted[2], abs=1e-6)


def test_groups_share_a_seed_and_live_episodes_share_an_engine_call(
    make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    config = GemConfig(ECHO, seeds=16, max_turn_tokens=6, record=str(tmp_path / "e.jsonl"))
    trainer = make_trainer(config, per_device_train_batch_size=8, num_generations=4)
    trainer.train()
    episodes = list(read_episodes(tmp_path / "e.jsonl"))
    groups = [episodes[:4], episodes[4:]]
    assert all(
        len({e.group for e in group}) == 1 and len({e.turns[0].added_ids for e in group}) == 1
        for group in groups
    )
    live = [
        sum(len(e.turns) > turn for e in episodes)
        for turn in range(max(len(e.turns) for e in episodes))
    ]
    assert trainer.rollout_func.calls == live


def test_stock_trainer_trains_the_same_episodes(make_trainer: Callable[..., Any]) -> None:
    """TRL's own advantages are one number per sequence; observation tokens stay masked."""
    trainer = make_trainer(GemConfig(ECHO, seeds=[2, 5, 8, 11], max_turn_tokens=6), GRPOTrainer)
    calls = spy(trainer)
    trainer.train()
    assert all(per_sequence.dim() == 1 for per_sequence, _, _ in calls)
    assert all(
        0 < mask.sum() < (ids != trainer.processing_class.pad_token_id).sum()
        for _, mask, ids in calls
    )


def test_failed_episodes_are_not_trained_and_others_are(make_trainer: Callable[..., Any]) -> None:
    trainer = make_trainer(
        GemConfig(MOODY, seeds=[0, 1], max_turn_tokens=6), per_device_train_batch_size=4
    )
    calls = spy(trainer)
    trainer.train()
    log = trainer.state.log_history[0]
    assert log["gem/failed"] == 0.5
    assert math.isfinite(log["reward"])
    trained = [bool(count) for _, mask, _ in calls for count in mask.sum(dim=1)]
    assert sorted(trained) == [False, False, True, True]


def zero(completions: Any, **_: Any) -> list[float]:
    """A second reward function, which gives every episode 0."""
    return [0.0] * len(completions)


@pytest.mark.parametrize("second", [None, zero])
def test_failed_episode_is_no_reward_of_0_with_a_second_reward_function(
    make_trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, second: Any
) -> None:
    """TRL's own advantages: three episodes with return 1, and one that failed."""
    config = GemConfig(ECHO, seeds=[0], max_turn_tokens=6)
    own = trainer_kwargs(config)["reward_funcs"]
    both = {"reward_funcs": own if second is None else [*own, second]}
    trainer = make_trainer(config, GRPOTrainer, both, num_generations=4)
    steps: list[str] = []

    def on_step(env: Any, action: str) -> Any:
        steps.append(action)
        if len(steps) == 2:
            raise RuntimeError("the second episode fails")
        return "", 1.0, True, False, {}

    monkeypatch.setattr(Echo, "on_step", on_step)
    calls = spy(trainer)
    trainer.train()
    log = trainer.state.log_history[0]
    assert (log["gem/failed"], log["gem/return"], log["reward"]) == (0.25, 1.0, 1.0)
    assert [a for per_sequence, _, _ in calls for a in per_sequence.tolist()] == [0.0] * 4


def test_rewards_are_wrapped_once(make_trainer: Callable[..., Any]) -> None:
    config = GemConfig(ECHO, seeds=8, max_turn_tokens=6)
    trainer = make_trainer(config)
    wrapped = trainer._calculate_rewards
    GemRollout(config).prepare(trainer)
    assert trainer._calculate_rewards is wrapped


def test_settings_are_checked_once_per_trainer(
    make_trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Any] = []
    monkeypatch.setattr("gem_trl.rollout.check_settings", lambda *args: checked.append(args))
    for trainer_class in (GemGRPOTrainer, GRPOTrainer):
        trainer = make_trainer(
            GemConfig(ECHO, seeds=8, max_turn_tokens=6), trainer_class, max_steps=2
        )
        trainer.train()
    assert len(checked) == 2


@pytest.mark.parametrize("on_cut", ["step", "mask"])
def test_turn_that_ends_with_a_stop_string_is_not_cut(
    make_trainer: Callable[..., Any], tmp_path: Path, on_cut: Any
) -> None:
    """vLLM's completion then ends below the cap and without the end token."""
    config = GemConfig(
        ECHO,
        seeds=[2, 5],
        max_turn_tokens=6,
        on_cut=on_cut,
        record=str(tmp_path / "e.jsonl"),
    )
    trainer = make_trainer(config)
    generate, end = trainer._generate_single_turn, trainer.processing_class.eos_token_id
    answers = [[40, 41], [40, 41, 42, 43, 44, 45], [40, 41, 42, 43, 44, end]]

    @wraps(generate)
    def generate_one(prompts: Any, *args: Any, **kwargs: Any) -> Any:
        return [list(answers[i % 3]) for i in range(len(prompts))], None

    trainer._generate_single_turn = generate_one
    trainer.train()
    turns = [turn for e in read_episodes(tmp_path / "e.jsonl") for turn in e.turns]
    assert {len(turn.action_ids) for turn in turns} == {2, 6}
    for turn in turns:
        cut = list(turn.action_ids) == answers[1]
        assert (turn.finish is FinishReason.LENGTH) == cut
        assert (turn.status is TurnStatus.MASKED) == (cut and on_cut == "mask")


@pytest.mark.setting("Growing horizon", "works")
def test_horizon_grows_with_the_step(make_trainer: Callable[..., Any], tmp_path: Path) -> None:
    config = GemConfig(
        ECHO,
        seeds=[2, 5, 8, 11],
        max_turn_tokens=6,
        horizon="1,2,3@1",
        record=str(tmp_path / "e.jsonl"),
    )
    trainer = make_trainer(config, max_steps=3)
    trainer.train()
    episodes = list(read_episodes(tmp_path / "e.jsonl"))
    assert [max(len(e.turns) for e in episodes[i : i + 4]) for i in (0, 4, 8)] == [1, 2, 3]


def test_horizon_grows_with_batches_of_episodes_not_with_optimizer_steps(
    make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    config = GemConfig(
        ECHO,
        seeds=[2, 5, 8, 11],
        max_turn_tokens=6,
        horizon="1,2,3@1",
        record=str(tmp_path / "e.jsonl"),
    )
    trainer = make_trainer(config, max_steps=8, steps_per_generation=2, num_iterations=2)
    trainer.train()
    episodes = list(read_episodes(tmp_path / "e.jsonl"))
    assert len(episodes) == 16
    assert [max(len(e.turns) for e in episodes[i : i + 8]) for i in (0, 8)] == [1, 2]
    assert updates_of(trainer) == 2


def test_record_file_is_released_after_training(
    make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    """A notebook cell that runs twice makes a second trainer while the first one still exists."""
    record = str(tmp_path / "e.jsonl")
    trainers = []
    for _ in range(2):
        trainers.append(make_trainer(GemConfig(ECHO, seeds=16, max_turn_tokens=6, record=record)))
        trainers[-1].train()
    trainers[0].train()
    assert len(list(read_episodes(tmp_path / "e.jsonl"))) == 12


def test_completions_never_exceed_max_completion_length(make_trainer: Callable[..., Any]) -> None:
    trainer = make_trainer(
        GemConfig(ECHO, seeds=[2, 5, 8, 11], max_turn_tokens=16), max_completion_length=40
    )
    calls = spy(trainer)
    trainer.train()
    assert calls
    assert all(ids.shape[1] <= 40 for _, _, ids in calls)


def test_continuous_batching_uses_the_same_rollout_function(
    make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    config = GemConfig(ECHO, seeds=[1], max_turn_tokens=3, record=str(tmp_path / "e.jsonl"))
    trainer = make_trainer(
        config,
        use_transformers_continuous_batching=True,
        # otherwise the cache takes most of the memory
        transformers_continuous_batching_config={"num_blocks": 8, "max_batch_tokens": 256},
        per_device_train_batch_size=2,
    )
    trainer.train()
    episodes = list(read_episodes(tmp_path / "e.jsonl"))
    assert len(episodes) == 2 and all(len(t.action_ids) <= 3 for e in episodes for t in e.turns)
    assert trainer.state.log_history[0]["grad_norm"] > 0


@pytest.mark.parametrize(
    ("fields", "settings", "message"),
    [
        ({}, {"mask_truncated_completions": True}, "on_cut='mask'"),
        ({"max_turn_tokens": 500}, {}, "max_completion_length"),
        ({}, {"max_completion_length": None}, "set it to a number of tokens"),
        (
            {"max_turn_tokens": 6},
            {"max_completion_length": None},
            "max_completion_length=None does not limit everything after the prompt",
        ),
        ({}, {"reward_weights": [0.5]}, "scale rewards in a wrapper"),
        ({}, {"multi_objective_aggregation": "normalize_then_sum"}, "remove it"),
        (
            {},
            {"steps_per_generation": 6, "gradient_accumulation_steps": 4},
            "= 6 is not a multiple of gradient_accumulation_steps=4",
        ),
        (
            {},
            {"gradient_accumulation_steps": 2, "generation_batch_size": 4},
            "would train on several batches of episodes.*; set steps_per_generation=2",
        ),
        ({}, {"num_iterations": 0}, "num_iterations must be a whole number of at least 1, got 0"),
        (
            {},
            {"generation_kwargs": {"max_new_tokens": 2}},
            r"generation_kwargs has max_new_tokens.*GemConfig\(max_turn_tokens=...\)",
        ),
        ({}, {"generation_kwargs": {"max_tokens": 2}}, "generation_kwargs has max_tokens"),
        ({}, {"per_device_train_batch_size": 32}, "above the number of seeds, 8"),
        pytest.param(
            {},
            {"scale_rewards": "none"},
            "estimator_kwargs={'scale': False}",
            marks=pytest.mark.setting("Estimator settings", "rejected"),
        ),
        pytest.param(
            {},
            {"importance_sampling_level": "sequence"},
            "set it to 'token'",
            marks=pytest.mark.setting("GSPO", "rejected"),
        ),
        pytest.param(
            {"template_kwargs": {"enable_thinking": True}},
            {"chat_template_kwargs": {"enable_thinking": False}},
            r"GemConfig\(template_kwargs=...\)",
            marks=pytest.mark.setting("Trainer's own template settings", "rejected"),
        ),
    ],
)
def test_unsupported_setting_is_rejected_at_construction(
    make_trainer: Callable[..., Any], fields: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_trainer(GemConfig(ECHO, seeds=8, **fields), **settings)


def test_mixin_after_the_trainer_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"write class Late\(GemAdvantages, ...\)"):

        class Late(GRPOTrainer, GemAdvantages):  # type: ignore[misc]
            pass

    type("GRPOTrainer", (GemAdvantages, GRPOTrainer), {})  # the name does not matter


def test_chat_template_kwargs_that_agree_with_the_config_are_accepted(
    make_trainer: Callable[..., Any],
) -> None:
    kwargs = {"enable_thinking": False}
    config = GemConfig(ECHO, seeds=8, max_turn_tokens=6, template_kwargs=kwargs)
    trainer = make_trainer(config, chat_template_kwargs=kwargs)
    assert trainer.gem_rollout.prepare(trainer).template_kwargs == kwargs


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param(
            "tools",
            r"GemConfig\(tools=...\)",
            marks=pytest.mark.setting("Trainer's own turn limits and tools", "rejected"),
        ),
        pytest.param(
            "use_liger_kernel",
            "advantage per sequence",
            marks=pytest.mark.setting("Liger", "rejected"),
        ),
    ],
)
def test_unsupported_argument_of_the_trainer_is_rejected(
    make_trainer: Callable[..., Any], name: str, message: str
) -> None:
    config = GemConfig(ECHO, seeds=8, max_turn_tokens=6)
    trainer = make_trainer(config)
    setattr(trainer if name == "tools" else trainer.args, name, True)
    with pytest.raises(ConfigError, match=message):
        check_settings(trainer, config)


@pytest.mark.setting("`batch_end`", "works")
def test_plugins_get_the_whole_batch_once(
    make_trainer: Callable[..., Any], batch_ends: list[list[Any]]
) -> None:
    trainer = make_trainer(
        GemConfig(ECHO, seeds=[2, 5], eval_seeds=2, max_turn_tokens=6),
        eval_strategy="steps",
        eval_steps=1,
        per_device_eval_batch_size=2,
    )
    trainer.train()
    assert "eval_gem/return" in trainer.state.log_history[1]
    assert [sorted(e.seed for e in episodes) for episodes in batch_ends] == [[2, 2, 5, 5]]


def test_evaluation_with_continuous_batching_is_no_training(
    make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    """TRL leaves the model in training mode after such a generation."""
    files = {"record": str(tmp_path / "e.jsonl"), "metrics": str(tmp_path / "m.jsonl")}
    trainer = make_trainer(
        GemConfig(ECHO, seeds=[2, 5], eval_seeds=2, max_turn_tokens=3, **files),
        use_transformers_continuous_batching=True,
        transformers_continuous_batching_config={"num_blocks": 8, "max_batch_tokens": 256},
        eval_strategy="steps",
        eval_steps=1,
        per_device_eval_batch_size=2,
    )
    trainer.train()
    assert "eval_gem/return" in trainer.state.log_history[1]
    assert [line["episodes"] for line in read_metrics(tmp_path / "m.jsonl")] == [4]
    episodes = [e.final_info for e in read_episodes(tmp_path / "e.jsonl")]
    assert sum("evaluation" in info for info in episodes) == 4
    assert not any({"evaluation", "advantages"} <= set(info) for info in episodes)


def test_stock_trainer_may_use_sequence_level_ratios(make_trainer: Callable[..., Any]) -> None:
    config = GemConfig(ECHO, seeds=8, max_turn_tokens=6)
    trainer = make_trainer(config, GRPOTrainer, importance_sampling_level="sequence")
    check_settings(trainer, config)


@pytest.mark.parametrize(
    ("mode", "warned"),
    [("sequence_mask", True), ("sequence_truncate", True), ("token_mask", False)],
)
def test_sequence_level_importance_correction_warns(
    make_trainer: Callable[..., Any], mode: str, warned: bool
) -> None:
    config = GemConfig(ECHO, seeds=8, max_turn_tokens=6)
    trainer = make_trainer(config, vllm_importance_sampling_mode=mode)
    check_settings(trainer, config)  # no vLLM, no correction, no warning
    trainer.args.use_vllm = True
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_settings(trainer, config)
    assert ["token_truncate" in str(warning.message) for warning in caught] == [True] * warned


def test_turn_with_an_unscored_token_is_masked(
    make_trainer: Callable[..., Any], with_logprobs: Callable[..., None], tmp_path: Path
) -> None:
    """vLLM returns no logprob for a token whose logprob is NaN."""
    files = {"record": str(tmp_path / "e"), "metrics": str(tmp_path / "m.jsonl")}
    config = GemConfig(ECHO, seeds=[2, 5, 8, 11], max_turn_tokens=6, **files)
    trainer = make_trainer(config, vllm_importance_sampling_mode="token_truncate")
    with_logprobs(trainer, [None, math.nan])
    calls = spy(trainer)
    trainer.train()
    turns = [turn for episode in read_episodes(tmp_path / "e") for turn in episode.turns]
    assert sum(turn.status is TurnStatus.MASKED for turn in turns) == 2
    ((_, mask, _),) = calls
    assert mask.sum() == sum(len(t.action_ids) for t in turns if t.status is TurnStatus.VALID)
    assert math.isfinite(trainer.state.log_history[0]["grad_norm"])
    log = trainer.state.log_history[0]
    assert log["grad_norm"] > 0
    assert 0 < log["gem/logprob_gap"] < log["gem/logprob_gap_p99"]
    assert log["gem/logprob_gap"] == pytest.approx(
        log["sampling/sampling_logp_difference/mean"], rel=1e-5
    )
    (line,) = read_metrics(tmp_path / "m.jsonl")
    assert line["logprob_gap_p99"] == pytest.approx(log["gem/logprob_gap_p99"])


@pytest.mark.setting("Importance correction", "works")
@pytest.mark.parametrize("mode", ["sequence_mask", "sequence_truncate"])
def test_importance_ratio_per_turn(
    make_trainer: Callable[..., Any], with_logprobs: Callable[..., None], mode: str
) -> None:
    """TRL's own ratio multiplies all tokens of an episode; this one those of a turn."""
    config = GemConfig(ECHO, seeds=[2, 5, 8, 11], max_turn_tokens=6)
    bound = 40.0
    trainer = make_trainer(
        config, vllm_importance_sampling_mode=mode, vllm_importance_sampling_clip_max=bound
    )
    with_logprobs(trainer)
    trainer.args.use_vllm, config.importance_per_turn = True, True
    batches: list[Any] = []
    compute_loss = trainer._compute_loss
    trainer._compute_loss = lambda model, inputs: (
        batches.append(inputs) or compute_loss(model, inputs)
    )
    trainer.train()
    (batch,) = batches
    mask = batch["completion_mask"] * batch["tool_mask"]
    difference = batch["old_per_token_logps"] - batch["sampling_per_token_logps"]
    ratios, found = batch["importance_sampling_ratio"], []
    for i in range(len(mask)):
        trained = enumerate(mask[i].nonzero().flatten().tolist())
        # consecutive tokens belong to one turn
        turns = [
            [t for _, t in run] for _, run in groupby(trained, key=lambda pair: pair[1] - pair[0])
        ]
        for turn in turns:
            product = math.exp(difference[i, turn].sum())
            beyond = bound if mode == "sequence_truncate" else 0.0
            found.append(product > bound)
            expected = beyond if product > bound else product
            assert ratios[i, turn].tolist() == pytest.approx([expected] * len(turn), rel=1e-4)
    assert len(found) == 12, "four episodes of three turns"
    assert math.isfinite(trainer.state.log_history[0]["grad_norm"])


@pytest.mark.parametrize(
    ("settings", "vllm", "message"),
    [
        ({}, False, "use_vllm=True"),
        ({"vllm_importance_sampling_mode": "token_mask"}, True, "got 'token_mask'"),
        ({"loss_type": "vespo"}, True, "loss_type='vespo'"),
    ],
)
def test_importance_ratio_per_turn_without_a_correction_is_rejected(
    make_trainer: Callable[..., Any], settings: dict[str, Any], vllm: bool, message: str
) -> None:
    config = GemConfig(ECHO, seeds=8, max_turn_tokens=6)
    trainer = make_trainer(config, **settings)
    trainer.args.use_vllm, config.importance_per_turn = vllm, True
    with pytest.raises(ConfigError, match=message):
        check_settings(trainer, config)


def test_all_rejected_settings_are_reported_at_once(make_trainer: Callable[..., Any]) -> None:
    config = GemConfig(ECHO, seeds=8, max_turn_tokens=500)
    with pytest.raises(ConfigError, match="3 settings are rejected") as raised:
        make_trainer(config, mask_truncated_completions=True, scale_rewards="none")
    for setting in ("mask_truncated_completions", "scale_rewards", "max_turn_tokens"):
        assert setting in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        pytest.param(
            {"advantage": "gae"},
            ConfigError,
            "a critic, which trl does not offer",
            marks=pytest.mark.setting("Critic", "rejected"),
        ),
        ({"advantage": "rebm"}, UnknownNameError, "rebn"),
        ({"wrappers": ["nothing"]}, UnknownNameError, "nothing"),
        ({"gamma": 1.5}, ConfigError, "between 0 and 1"),
        ({"estimator_kwargs": {"per_envs": True}}, ConfigError, "does not take"),
        ({"seeds": [1_000_001], "eval_seeds": 4}, ConfigError, "are trained on"),
        ({"horizon": "soon"}, ConfigError, "horizon"),
        ({"env_id": "test:Ecko-v0"}, UnknownNameError, "test:Echo-v0"),
    ],
)
def test_unsupported_config_is_rejected(
    fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        GemConfig(**{"env_id": ECHO, **fields})


@pytest.mark.setting("One advantage per sequence", "rejected")
def test_trainer_with_one_advantage_per_sequence_is_rejected(
    make_trainer: Callable[..., Any],
) -> None:
    class PerSequenceTrainer(GemAdvantages, GMPOTrainer):
        pass

    with pytest.raises(ConfigError, match="one advantage per sequence"):
        make_trainer(GemConfig(ECHO, seeds=8, max_turn_tokens=6), PerSequenceTrainer)


@pytest.mark.parametrize("fields", [{"wrappers": ["concat"]}, {"history": "template"}])
def test_rewritten_history_is_rejected_without_gem_advantages(
    make_trainer: Callable[..., Any], fields: dict[str, Any]
) -> None:
    config = GemConfig(ECHO, seeds=8, max_turn_tokens=6, **fields)
    with pytest.raises(ConfigError, match="use GemGRPOTrainer"):
        check_settings(make_trainer(config, GRPOTrainer), config)


def test_settings_of_a_second_trainer_are_checked_too(make_trainer: Callable[..., Any]) -> None:
    config = GemConfig(ECHO, seeds=8, max_turn_tokens=6)
    make_trainer(config, GRPOTrainer).train()
    trainer = make_trainer(config, GRPOTrainer, mask_truncated_completions=True)
    with pytest.raises(ConfigError, match="on_cut='mask'"):
        trainer.train()


@pytest.mark.setting("Trainer's own rewards", "rejected")
def test_weighted_reward_function_is_rejected(make_trainer: Callable[..., Any]) -> None:
    def brevity(completions: Any, **_: Any) -> list[float]:
        return [-float(len(c)) for c in completions]

    config = GemConfig(ECHO, seeds=8, max_turn_tokens=6)
    both = {"reward_funcs": [*trainer_kwargs(config)["reward_funcs"], brevity]}
    with pytest.raises(ConfigError, match="per-turn advantages ignore the rewards of brevity"):
        make_trainer(config, kwargs=both, reward_weights=[1.0, 0.5])
    make_trainer(config, kwargs=both, reward_weights=[1.0, 0.0])


def test_train_adds_reward_functions_to_gems(
    trainer_settings: Callable[..., dict[str, Any]],
) -> None:
    config = GemConfig(ECHO, seeds=8, max_turn_tokens=6)
    for functions in (zero, [zero], [*trainer_kwargs(config)["reward_funcs"], zero]):
        settings = trainer_settings(reward_weights=[1.0, 0.0])
        trainer = train(config, {**settings, "reward_funcs": functions})
        assert trainer.reward_func_names == ["episode_return", "zero"]
        assert trainer.state.log_history[0]["rewards/zero/mean"] == 0.0
    with pytest.raises(ConfigError, match="set their reward_weights to 0"):
        train(config, {**trainer_settings(), "reward_funcs": [zero]})


def test_train_rejects_settings_that_the_config_determines(
    trainer_settings: Callable[..., dict[str, Any]],
) -> None:
    config = GemConfig(ECHO, seeds=8, max_turn_tokens=6)
    with pytest.raises(ConfigError, match="settings has rollout_func, train_dataset, which"):
        train(config, {**trainer_settings(), **trainer_kwargs(config)})


def test_train_rejects_evaluation_seeds_that_are_never_played(
    trainer_settings: Callable[..., dict[str, Any]], make_trainer: Callable[..., Any]
) -> None:
    config = GemConfig(ECHO, seeds=[2, 5], eval_seeds=2, max_turn_tokens=6)
    with pytest.raises(ConfigError, match=r"2 evaluation seeds(.|\n)*eval_strategy='steps'"):
        train(config, trainer_settings())
    with pytest.raises(ConfigError, match="eval_strategy='no'"):
        train(config, {"model": "never loaded"})
    trainer = train(config, trainer_settings(eval_on_start=True, per_device_eval_batch_size=2))
    assert "eval_gem/return" in trainer.state.log_history[0]
    trainer = make_trainer(config, per_device_eval_batch_size=2)
    with pytest.warns(UserWarning, match=r"or call trainer.evaluate\(\)"):
        trainer.train()
    assert "eval_gem/return" in trainer.evaluate()


def test_loss_that_ignores_the_loss_mask_is_rejected(make_trainer: Callable[..., Any]) -> None:
    class PatchedTrainer(GemAdvantages, GRPOTrainer):
        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            return None

    with pytest.raises(ConfigError, match="tool_mask"):
        make_trainer(GemConfig(ECHO, seeds=8, max_turn_tokens=6), PatchedTrainer)


def test_check_batch_rejects_changed_ids_or_mask() -> None:
    sequence = TokenSequence((5, 6, 7, 8), (-1, 0, -1, 1), None, frozenset({0, 1}))
    padded = {
        "completion_ids": [[6, 7, 8, 0]],
        "completion_mask": [[1, 1, 1, 0]],
        "tool_mask": [[1, 0, 1, 1]],
        "advantages": [0],
    }
    batch = {key: torch.tensor(value) for key, value in padded.items()}
    check_batch(batch, [sequence])
    for key, wrong in (
        ("completion_ids", [[6, 7, 9, 0]]),
        ("tool_mask", [[1, 1, 1, 1]]),
        ("tool_mask", [[1, 0, 0, 1]]),
        ("completion_mask", [[1, 1, 1, 1]]),
    ):
        with pytest.raises(BatchMismatchError, match="sequence 0 of TRL's batch"):
            check_batch({**batch, key: torch.tensor(wrong)}, [sequence])


def test_missing_loss_mask_stops_training(make_trainer: Callable[..., Any]) -> None:
    class MaskDroppingTrainer(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            out = super()._generate_and_score_completions(inputs)
            del out["tool_mask"]
            return out

    trainer_class = type("Trainer", (GemAdvantages, MaskDroppingTrainer), {})
    trainer = make_trainer(GemConfig(ECHO, seeds=8, max_turn_tokens=6), trainer_class)
    with pytest.raises(BatchMismatchError, match="tool_mask"):
        trainer.train()


@pytest.mark.parametrize("key", ["completion_ids", "tool_mask"])
def test_changed_batch_stops_training_and_its_episodes_are_recorded(
    make_trainer: Callable[..., Any], key: str, tmp_path: Path
) -> None:
    class BatchChangingTrainer(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            out = super()._generate_and_score_completions(inputs)
            out[key] = out[key].roll(1, dims=1)
            return out

    trainer_class = type("Trainer", (GemAdvantages, BatchChangingTrainer), {})
    config = GemConfig(ECHO, seeds=[2, 5, 8, 11], max_turn_tokens=6, record=str(tmp_path / "e"))
    trainer = make_trainer(config, trainer_class)
    with pytest.raises(BatchMismatchError, match="of TRL's batch"):
        trainer.train()
    assert ["advantages" in e.final_info for e in read_episodes(tmp_path / "e")] == [False] * 4


def test_engine_failure_ends_the_run(make_trainer: Callable[..., Any]) -> None:
    """Otherwise every batch would consist of failed episodes, and look like training."""
    trainer = make_trainer(GemConfig(ECHO, seeds=8, max_turn_tokens=6))

    def out_of_memory(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("CUDA out of memory")

    trainer._generate_single_turn = out_of_memory
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.train()


def test_success_counts_episodes_cut_by_the_horizon(
    make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    config = GemConfig(
        "game:GuessTheNumber-v0-easy",
        seeds=64,
        max_turn_tokens=12,
        horizon=1,
        record=str(tmp_path / "e.jsonl"),
    )
    trainer = make_trainer(config, per_device_train_batch_size=32)
    trainer.train()
    episodes = list(read_episodes(tmp_path / "e.jsonl"))
    assert trainer.state.log_history[0]["gem/success"] == pytest.approx(
        sum(bool(e.success) for e in episodes) / len(episodes)
    )


def test_other_rollout_function_is_rejected(make_trainer: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"trainer_kwargs\(config\) to the trainer"):
        make_trainer(GemConfig(ECHO, seeds=8), kwargs={"rollout_func": lambda prompts, trainer: {}})


def test_dataset_without_tasks_is_rejected(make_trainer: Callable[..., Any]) -> None:
    config = GemConfig(ECHO, seeds=8, max_turn_tokens=6)
    other = trainer_kwargs(config)["train_dataset"].map(
        lambda row: {"prompt": [{"role": "user", "content": "hi"}]}, remove_columns=["prompt"]
    )
    with pytest.raises(ConfigError, match="has no gem task"):
        make_trainer(config, kwargs={"train_dataset": other}).train()


def test_unsupported_version_is_rejected(
    monkeypatch: pytest.MonkeyPatch, make_trainer: Callable[..., Any]
) -> None:
    monkeypatch.setattr("gem_core.adapter_kit.declaration._installed", lambda *names: "0.20.0")
    with pytest.raises(ConfigError, match=r"supports trl >=1.10,<2, installed: 0.20.0"):
        make_trainer(GemConfig(ECHO, seeds=8, max_turn_tokens=6))


@pytest.mark.setting("Evaluation", "works")
def test_metrics_file_has_one_line_per_update(
    make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "metrics.jsonl"
    config = GemConfig(
        ECHO,
        seeds=16,
        eval_seeds=2,
        max_turn_tokens=6,
        metrics=str(path),
        record=str(tmp_path / "e.jsonl"),
    )
    trainer = make_trainer(
        config, max_steps=3, eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=2
    )
    trainer.train()
    lines = read_metrics(path)
    logs = [log for log in trainer.state.log_history if "loss" in log]
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert all(line["seconds"] > 0 for line in lines)
    assert all(line["episodes"] == 4 for line in lines), "evaluation episodes are not counted"
    episodes = list(read_episodes(tmp_path / "e.jsonl"))
    evaluation = [e for e in episodes if e.final_info.get("evaluation")]
    assert len(episodes) == 3 * (4 + 4)
    assert len(evaluation) == 3 * 4
    assert {e.seed for e in evaluation} == set(config.held_out_seeds)
    for line, log in zip(lines, logs):
        assert (line["loss"], line["grad_norm"]) == (log["loss"], log["grad_norm"])
        assert line["advantage_abs"] == pytest.approx(log["gem/advantage_abs"])
        for name in ("success", "return", "turns", "failed"):
            assert line[name] == pytest.approx(log[f"gem/{name}"])
        assert log["reward"] == pytest.approx(log["gem/return"])
        assert log["gem/tool_uses"] == 0
    evaluations = [log for log in trainer.state.log_history if "eval_gem/return" in log]
    assert len(evaluations) == 3


@pytest.mark.parametrize(
    ("settings", "episodes"),
    [
        ({"steps_per_generation": 2, "num_iterations": 2, "max_steps": 8}, [8, 8]),
        ({"gradient_accumulation_steps": 2, "max_steps": 1}, [8]),
    ],
    ids=["several steps for a batch", "gradient accumulation"],
)
def test_update_is_a_batch_of_episodes(
    make_trainer: Callable[..., Any], tmp_path: Path, settings: dict[str, Any], episodes: list[int]
) -> None:
    config = GemConfig(ECHO, seeds=16, max_turn_tokens=6, metrics=str(tmp_path / "metrics.jsonl"))
    make_trainer(config, **settings).train()
    lines = read_metrics(tmp_path)
    assert [line["episodes"] for line in lines] == episodes
    assert [line["step"] for line in lines] == list(range(len(episodes)))
    assert all(line["loss"] is not None and line["advantage_abs"] > 0 for line in lines)


def test_metrics_line_has_no_loss_when_trl_logs_none(
    make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    config = GemConfig(ECHO, seeds=16, max_turn_tokens=6, metrics=str(tmp_path / "metrics.jsonl"))
    make_trainer(config, GRPOTrainer, max_steps=3, logging_steps=2).train()
    lines = read_metrics(tmp_path)
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert ["loss" in line for line in lines] == [False, True, False]
    assert all(line["advantage_abs"] is None for line in lines), "TRL computed the advantages"
