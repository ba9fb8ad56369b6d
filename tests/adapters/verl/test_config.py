"""A spec becomes hydra overrides and comes back, and every setting gem cannot honour is refused."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from gem_core.adapter_kit.conformance import CASES
from gem_core.adapter_kit.conformance.golden import END, failed_episode
from gem_core.errors import ConfigError, UnknownNameError
from gem_core.policies import tiny_model_path
from gem_verl import GemDataset, GemSpec
from gem_verl.config import channel, check_config, spec_of
from gem_verl.convert import to_rows

ECHO = "test:Echo-v0"


def config_of(spec: GemSpec, *settings: str) -> Any:
    given = [*spec.overrides(), f"actor_rollout_ref.model.path={tiny_model_path()}", *settings]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=given)
    OmegaConf.resolve(config)
    return config


def test_a_spec_survives_hydra() -> None:
    spec = GemSpec(
        "2*test:Echo-v0 + 1*test:Moody-v0",
        seeds=[3, 1],
        eval_seeds=2,
        eval_envs=["test:Moody-v0"],
        wrappers=["react", ["turn_limit", {"max_turns": 3}]],
        tools="python(seconds=2)",
        options={"text": "it's a \\ {braced}, quoted one"},
        advantage="reinforce++",
        gamma=0.5,
        estimator_kwargs={"per_env": True},
        horizon=[4, 7, 10],
        step_deadline=1.5,
        record="somewhere/{rank}.jsonl",
    )
    assert spec_of(config_of(spec)) == spec


def test_a_data_set_is_its_starts() -> None:
    config = config_of(GemSpec(ECHO, seeds=5, eval_seeds=3, eval_envs=[ECHO, "test:Moody-v0"]))
    train = GemDataset("train", config=config.data)
    assert [row["extra_info"]["gem"]["seed"] for row in train] == [0, 1, 2, 3, 4]
    val = GemDataset("val", config=config.data, max_samples=4)
    assert [row["data_source"] for row in val] == [ECHO] * 3 + ["test:Moody-v0"]
    assert [spec_of(config).task_of(row).env_id for row in val] == [ECHO] * 3 + ["test:Moody-v0"]
    other = spec_of(config, {"env_id": "test:Moody-v0"})
    assert {other.task_of(row).env_id for row in train} == {"test:Moody-v0"}, "an agent loop file goes over data.gem"
    assert not {row["extra_info"]["gem"]["seed"] for row in val} & set(range(5))
    with pytest.raises(ConfigError, match="'train' and data.val_files 'val'"):
        GemDataset("train.parquet", config=config.data)


N = "actor_rollout_ref.rollout.n=2"
REFUSED: list[tuple[Sequence[str], str]] = [
    (["algorithm.use_kl_in_reward=True"], "KL in the loss"),
    (["algorithm.rollout_correction.rollout_rs=token_k1"], "changes the mask"),
    (["algorithm.adv_estimator=gem_gae"], "a critic"),
    (["actor_rollout_ref.actor.policy_loss.loss_mode=geo_mean"], "one advantage per row"),
    (["reward.reward_model.enable=True"], "over the environment's rewards"),
    (["data.max_response_length=4"], "max_turn_tokens=6 is over data.max_response_length=4"),
    (["+data.gem.gamma=0.5"], "data.gem.gamma is 0.5, algorithm.gamma is 1.0"),
    (["+data.gem.horison=4"], "did you mean 'horizon'"),
    (["+data.gem.wrappers=concat", "trainer.use_v1=False"], "legacy trainer takes one row"),
    (["+data.gem.wrappers=concat", "algorithm.adv_estimator=grpo"], "gem_rebn"),
    (["+data.gem.wrappers=concat", N, "algorithm.adv_estimator=gem_grpo"], "trainer_mode=gem_sync"),
    (["algorithm.adv_estimator=gem_grpo"], "'grpo' compares episodes .*rollout.n is 1; .*actor_rollout_ref.rollout.n=8"),
    (["algorithm.adv_estimator=gem_rloo"], "'rloo' compares episodes from one start"),
    ([N, "algorithm.adv_estimator=gem_grpo", "algorithm.norm_adv_by_std_in_grpo=False"], r"\+algorithm.gem.scale=False"),
    (["algorithm.use_pf_ppo=True"], "verl's own gae only"),
    (["critic.enable=True"], "a critic whose values"),
    (["algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=success"], "set it to reward"),
    (["+algorithm.gem.no_such=1"], "does not take"),
]


@pytest.mark.parametrize(("settings", "says"), REFUSED, ids=[settings[-1] for settings, _ in REFUSED])
def test_a_setting_that_cannot_be_honoured_is_refused(settings: Sequence[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_config(config_of(GemSpec(ECHO, seeds=8, max_turn_tokens=6), *settings))


@pytest.mark.parametrize(
    "settings",
    [
        ["algorithm.adv_estimator=gem_grpo", N],
        ["algorithm.adv_estimator=gem_grpo", N, "algorithm.norm_adv_by_std_in_grpo=False", "+algorithm.gem.scale=False"],
        ["algorithm.norm_adv_by_std_in_grpo=False"],
        ["algorithm.filter_groups.enable=True"],
    ],
    ids=lambda settings: settings[-1],
)
def test_a_setting_with_its_remedy_is_taken(settings: Sequence[str]) -> None:
    check_config(config_of(GemSpec(ECHO, seeds=8), *settings))


def test_without_scale_nothing_is_divided_by_the_spread() -> None:
    """What the refusal of norm_adv_by_std_in_grpo promises of its remedy, in numbers: Dr. GRPO's."""
    import torch
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    settings = ["algorithm.norm_adv_by_std_in_grpo=False", N]
    config = config_of(GemSpec(ECHO, seeds=8, advantage="grpo", estimator_kwargs={"scale": False}), *settings)
    given = {"response_mask": torch.ones(3, 1), "token_level_rewards": torch.tensor([[1.0], [4.0], [4.0]])}
    found, _ = get_adv_estimator_fn("gem_grpo")(**given, index=["one"] * 3, config=config.algorithm)
    assert found[:, 0].tolist() == [-2.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("estimator", "instead"),
    [("grpo", "gem_grpo"), ("rloo", "gem_rloo"), ("reinforce_plus_plus", "gem_reinforce++"), ("opo", "gem_rebn")],
)
def test_an_estimator_of_verls_own_is_warned_about_once(estimator: str, instead: str) -> None:
    config = config_of(GemSpec(ECHO, seeds=8), f"algorithm.adv_estimator={estimator}")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        check_config(config)
        check_config(config)
    (warning,) = said
    assert f"{estimator!r} counts a failed episode" in str(warning.message)
    assert f"algorithm.adv_estimator={instead}," in str(warning.message)


@pytest.mark.parametrize("estimator", ["rebn", "grpo", "reinforce++"])
def test_an_estimator_of_gem_is_not_warned_about(estimator: str) -> None:
    config = config_of(GemSpec(ECHO, seeds=8, advantage=estimator), N)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_config(config)


@pytest.mark.parametrize(("estimator", "given"), [("grpo", 0.577), ("gem_grpo", 0.0)])
def test_the_warning_is_true(estimator: str, given: float) -> None:
    """Two episodes that earned 1, and a failed one, as rows in one group of verl."""
    import torch
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    import gem_verl.plugin  # noqa: F401

    config = config_of(GemSpec(ECHO, seeds=8), f"algorithm.adv_estimator={estimator}").algorithm
    one = next(case for case in CASES if case.name == "multi-byte text").episodes[0]
    assert one.total_reward == 1.0
    rows = [to_rows(episode, END, **channel(config))[0] for episode in (one, one, failed_episode())]
    found, _ = get_adv_estimator_fn(estimator)(
        token_level_rewards=padded([row.rewards for row in rows]),
        response_mask=padded([row.mask for row in rows]),
        index=["one group"] * 3,
        config=config,
    )
    assert found[:, 0].tolist() == pytest.approx([given, given, 0.0], abs=1e-3)
    assert torch.isfinite(found).all()


def padded(rows: Sequence[Sequence[float]]) -> Any:
    import torch

    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row, dtype=torch.float32) for row in rows], batch_first=True)


def test_gems_trainer_refuses_before_anything_is_loaded() -> None:
    from verl.trainer.ppo.v1 import get_trainer_cls

    config = config_of(GemSpec(ECHO, seeds=8), "algorithm.use_kl_in_reward=True")
    with pytest.raises(ConfigError, match="use_kl_in_reward"):
        get_trainer_cls(config.trainer.v1.trainer_mode)(config)


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        ({"advantage": "gae"}, ConfigError, "needs a critic"),
        ({"env_id": "test:Ecko-v0"}, UnknownNameError, "test:Echo-v0"),
        ({"eval_envs": ["test:Ecko-v0"]}, UnknownNameError, "test:Echo-v0"),
        ({"seeds": 8, "eval_seeds": [3]}, ConfigError, "are trained on"),
    ],
)
def test_a_spec_that_cannot_be_honoured_is_refused(fields: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        GemSpec(**{"env_id": ECHO, **fields})


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(GemSpec(ECHO, seeds=8))
    monkeypatch.setattr("gem_core.adapter_kit.declaration._installed", lambda *names: "0.8.0")
    with pytest.raises(ConfigError, match=r"fits verl >=0.9,<0.10; installed is 0.8.0"):
        check_config(config)


@pytest.mark.parametrize("has_it", [True, False])
def test_a_trl_that_verl_cannot_patch_is_refused(has_it: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As TRL was in 1.10, with a model with a value head in its experiments, and is in 1.16, with none."""
    (tmp_path / "trl" / "experimental").mkdir(parents=True)
    (tmp_path / "trl" / "__init__.py").touch()
    if has_it:
        (tmp_path / "trl" / "experimental" / "ppo.py").write_text("class AutoModelForCausalLMWithValueHead: ...\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "trl"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    config = config_of(GemSpec(ECHO, seeds=8))
    try:
        if has_it:
            check_config(config)
        else:
            with pytest.raises(ConfigError, match=re.escape(f"the TRL in {tmp_path}/trl has none")):
                check_config(config)
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "trl"]:
            del sys.modules[name]


def test_an_environment_may_stand_in_an_agent_loop_file(tmp_path: Path) -> None:
    config = config_of(GemSpec(ECHO, seeds=8))
    found = spec_of(config, {"env_id": "test:Moody-v0", "horizon": [4, 7, 10]})
    assert (found.env_id, found.limits(150).max_turns) == ("test:Moody-v0", 7)
