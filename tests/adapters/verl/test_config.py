"""`GemConfig` as hydra overrides, and the verl settings that `check_settings` rejects."""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gem_conformance import CASES
from gem_conformance.golden import END, failed_episode
from omegaconf import OmegaConf
from snippets import shown_settings
from worlds import ECHO, MOODY

from gem_core.errors import ConfigError, UnknownNameError
from gem_core.policies import tiny_model_path
from gem_verl import GemConfig, GemDataset, cores
from gem_verl.channel import token_rewards
from gem_verl.config import check_settings, hydra_config, read_config
from gem_verl.convert import to_batch

GUESS = "game:GuessTheNumber-v0-easy"


def settings_of(config: GemConfig, *settings: str) -> Any:
    own = [f"actor_rollout_ref.model.path={tiny_model_path()}", "data.train_batch_size=1"]
    composed = hydra_config(config, [*own, *settings])
    OmegaConf.resolve(composed)
    return composed


def check(config: GemConfig, *settings: str) -> GemConfig:
    """Check the settings and return the config read from them."""
    composed = settings_of(config, *settings)
    read = read_config(composed)
    check_settings(composed, read)
    return read


@pytest.mark.parametrize("page", ["docs/train_your_environment.md", "adapters/gem_verl/README.md"])
def test_settings_of_the_pages_are_accepted(page: str) -> None:
    config, settings = shown_settings(page, "gem_verl")
    check_settings(hydra_config(config, settings), config)


def test_fewer_seeds_than_a_batch_are_rejected() -> None:
    with pytest.raises(ConfigError, match="train_batch_size=1024 is above the number of seeds, 8"):
        check(GemConfig(ECHO, seeds=8), "data.train_batch_size=1024")
    with pytest.raises(ConfigError, match="train_batch_size=8 is above the number of seeds, 4"):
        check(GemConfig(ECHO, seeds=8), "data.train_batch_size=8", "data.train_max_samples=4")
    more = "data.train_batch_size=1024"
    check(GemConfig(ECHO, seeds=8, eval_seeds=8), more, "trainer.val_only=True")
    check(GemConfig(ECHO, seeds=8), more, "data.custom_cls.name=Own")  # has rows of its own


def test_batch_without_seeds_is_rejected() -> None:
    with pytest.raises(ConfigError, match="train_batch_size must be a whole number of at least 1"):
        check(GemConfig(ECHO, seeds=8), "data.train_batch_size=0")


QUEUE = "transfer_queue.backend.SimpleStorage.num_data_storage_units"
ONE = "trainer.n_gpus_per_node=1"
SEPARATE = [
    "trainer.v1.trainer_mode=gem_separate_async",
    "actor_rollout_ref.rollout.nnodes=1",
    "actor_rollout_ref.rollout.n_gpus_per_node=2",
]


@pytest.mark.parametrize(
    ("needed", "settings"),
    [
        (34, []),  # 8 storage units, 3 cores for each of 8 GPUs, and 2 more
        (13, [ONE]),
        (7, [ONE, f"{QUEUE}=2"]),
        (10, [ONE, "trainer.nnodes=2", f"{QUEUE}=2"]),
        (11, [ONE, f"{QUEUE}=2", *SEPARATE]),
        (4, [ONE, "trainer.use_v1=False"]),
    ],
)
def test_fewer_cores_than_verl_reserves_are_rejected(needed: int, settings: list[str]) -> None:
    composed = settings_of(GemConfig(ECHO, seeds=8), *settings)
    with pytest.raises(ConfigError, match=f"{needed - 1} cores, but verl reserves {needed} and"):
        cores.check_cores(composed, needed - 1, started=True)
    cores.check_cores(composed, needed, started=True)


def test_remedies_for_few_cores_have_an_effect() -> None:
    def remedy(available: int, started: bool, *settings: str) -> str:
        composed = settings_of(GemConfig(ECHO), ONE, *settings)
        with pytest.raises(ConfigError) as raised:
            cores.check_cores(composed, available, started=started)
        return str(raised.value).partition("Set ")[2]

    assert remedy(8, True).startswith(f"{QUEUE}=2 or ray_kwargs.ray_init.num_cpus=13, if this")
    assert remedy(6, False).startswith(f"{QUEUE}=1 or num_cpus=13 where you start Ray")
    assert remedy(5, True).startswith("ray_kwargs.ray_init.num_cpus=13")
    assert remedy(5, True, f"{QUEUE}=1").startswith("ray_kwargs.ray_init.num_cpus=6")
    mooncake = "transfer_queue.backend.storage_backend=MooncakeStore"
    assert remedy(4, False, mooncake).startswith("num_cpus=5 where")


def test_cores_are_those_that_verl_reserves() -> None:
    from transfer_queue.controller import TransferQueueController
    from transfer_queue.storage import SimpleStorageUnit
    from verl.single_controller.ray import ResourcePoolManager
    from verl.workers.rollout import replica

    assert ResourcePoolManager.max_colocate_count == cores.PER_GPU
    standalone = inspect.getsource(replica.RolloutReplica.init_standalone)
    assert f"max_colocate_count={cores.PER_SERVER_GPU}," in standalone
    for actor in (TransferQueueController, SimpleStorageUnit):
        assert actor._default_options["num_cpus"] == 1


def test_evaluation_seeds_need_an_interval() -> None:
    config = GemConfig(ECHO, seeds=8, eval_seeds=4)
    with pytest.raises(ConfigError, match=r"test_freq=-1: verl would not validate on"):
        check(config)
    check(config, "trainer.test_freq=5")


def test_config_round_trips_through_hydra() -> None:
    config = GemConfig(
        f"2*{ECHO} + 1*{MOODY}",
        seeds=[3, 1],
        eval_seeds=2,
        eval_envs=[f"1*{ECHO} + 1*{MOODY}"],
        wrappers=["react", ["turn_limit", {"max_turns": 3}]],
        tools="python(seconds=2)",
        template_kwargs={"text": "it's a \\ {braced}, quoted one"},
        advantage="reinforce++",
        gamma=0.5,
        estimator_kwargs={"per_env": True},
        horizon={"rounds": [4, 7, 10], "every": 80},
        step_deadline=1.5,
        record="somewhere/{rank}.jsonl",
        metrics="somewhere/metrics.jsonl",
    )
    assert read_config(settings_of(config)) == config


def test_dataset_has_one_row_per_seed() -> None:
    settings = settings_of(GemConfig(ECHO, seeds=5, eval_seeds=3, eval_envs=[ECHO, MOODY]))
    train = GemDataset("train", config=settings.data)
    assert [row["extra_info"]["gem"]["seed"] for row in train] == [0, 1, 2, 3, 4]
    val = GemDataset("val", config=settings.data, max_samples=4)
    assert [row["data_source"] for row in val] == [ECHO] * 3 + [MOODY]
    assert [read_config(settings).task_of(row).env_id for row in val] == [ECHO] * 3 + [MOODY]
    other = read_config(settings, {"env_id": MOODY})
    assert {other.task_of(row).env_id for row in train} == {MOODY}
    assert not {row["extra_info"]["gem"]["seed"] for row in val} & set(range(5))
    is_evaluation = read_config(settings).is_evaluation
    assert all(map(is_evaluation, val)) and not any(map(is_evaluation, train))
    with pytest.raises(ConfigError, match="'train' and data.val_files 'val'"):
        GemDataset("train.parquet", config=settings.data)


N = "actor_rollout_ref.rollout.n=2"
STOCK = "trainer.v1.trainer_mode=sync"
ATTENTION = "+actor_rollout_ref.model.override_config.attn_implementation"
GAE = ["algorithm.adv_estimator=gem_gae", "critic.enable=True"]
REJECTED: list[Any] = [
    pytest.param(
        ["algorithm.use_kl_in_reward=True"],
        "KL in the loss",
        marks=pytest.mark.setting("KL in the reward", "rejected"),
    ),
    (["algorithm.rollout_correction.rollout_rs=token_k1"], "changes the loss mask"),
    (["algorithm.adv_estimator=gem_gae"], "set critic.enable=True"),
    ([*GAE, STOCK], "gem's trainers, which read the critic's values"),
    ([*GAE, "algorithm.lam=0.5"], r"set \+algorithm.gem.lam=0.5"),
    (["+data.gem.history=template", "algorithm.adv_estimator=grpo"], "history='template'"),
    pytest.param(
        ["actor_rollout_ref.actor.policy_loss.loss_mode=geo_mean"],
        "one advantage per sequence",
        marks=pytest.mark.setting("One advantage per sequence", "rejected"),
    ),
    (["reward.reward_model.enable=True"], "overwrites the environment's rewards"),
    pytest.param(
        ["reward.custom_reward_function.path=score.py"],
        "in a wrapper around the environment",
        marks=pytest.mark.setting("Trainer's own rewards", "rejected"),
    ),
    (["custom_reward_function.path=score.py"], "in a wrapper around the environment"),
    (["reward.reward_manager.name=dapo"], "reward.reward_manager: verl calls no reward function"),
    (["reward_model.reward_manager=dapo"], "reward_model.reward_manager: verl calls no reward"),
    (["+reward.reward_kwargs.overlong_buffer_cfg.enable=True"], "data.gem.on_cut=mask"),
    (["+reward_model.reward_kwargs.overlong_buffer_cfg.enable=True"], "data.gem.on_cut=mask"),
    (["reward.sandbox_fusion.url=http://sandbox"], "reward.sandbox_fusion.url: verl calls no"),
    pytest.param(
        ["actor_rollout_ref.rollout.multi_turn.max_assistant_turns=4"],
        "data.gem.horizon",
        marks=pytest.mark.setting("Trainer's own turn limits and tools", "rejected"),
    ),
    (["actor_rollout_ref.rollout.multi_turn.max_user_turns=4"], "data.gem.horizon"),
    (["actor_rollout_ref.rollout.multi_turn.tool_config_path=tools.yaml"], "data.gem.tools"),
    (["actor_rollout_ref.rollout.multi_turn.function_tool_path=tools.py"], "data.gem.tools"),
    pytest.param(
        ["+data.apply_chat_template_kwargs.enable_thinking=False"],
        "data.gem.template_kwargs",
        marks=pytest.mark.setting("Trainer's own template settings", "rejected"),
    ),
    (
        [
            "algorithm.rollout_correction.rollout_is=token",
            "actor_rollout_ref.rollout.calculate_log_probs=False",
        ],
        "calculate_log_probs=True",
    ),
    (
        [
            "algorithm.rollout_correction.bypass_mode=True",
            "actor_rollout_ref.rollout.calculate_log_probs=False",
        ],
        "calculate_log_probs=True",
    ),
    *(
        (
            [
                "algorithm.rollout_correction.bypass_mode=True",
                "actor_rollout_ref.rollout.calculate_log_probs=True",
                f"algorithm.rollout_correction.{ignored}",
            ],
            "ignores rollout_is, rollout_rs and loss_type",
        )
        for ignored in ("rollout_is=token", "rollout_rs=token_k1", "loss_type=reinforce")
    ),
    *(
        ([setting], "without seeds to validate on; set data.gem.eval_seeds")
        for setting in (
            "trainer.test_freq=5",
            "trainer.val_before_train=True",
            "trainer.val_only=True",
        )
    ),
    (
        ["actor_rollout_ref.rollout.full_determinism=True"],
        "every request the same seed, so the episodes of a seed would be equal",
    ),
    (
        ["actor_rollout_ref.rollout.enable_rollout_routing_replay=True"],
        "need the experts of every sampled token",
    ),
    (
        [
            "actor_rollout_ref.actor.use_dynamic_bsz=True",
            "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=16",
        ],
        "rollout.log_prob_max_token_len_per_gpu limits a micro-batch to 16 tokens",
    ),
    (
        [
            "actor_rollout_ref.actor.use_dynamic_bsz=True",
            "actor_rollout_ref.rollout.max_model_len=20000",
        ],
        "limits a micro-batch to 16384 tokens, but an episode may have 20000",
    ),
    (["data.max_response_length=4"], "max_turn_tokens=6 is above data.max_response_length=4"),
    (
        [
            "actor_rollout_ref.actor.use_dynamic_bsz=True",
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16",
        ],
        "ppo_max_token_len_per_gpu limits a micro-batch to 16 tokens, but an episode may have",
    ),
    (
        [f"{ATTENTION}=torch_varlen", "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"],
        "with attn_implementation=torch_varlen, tokens would not see those of other ranks",
    ),
    (
        [
            f"{ATTENTION}=sdpa",
            "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=2",
        ],
        "Set the size to 1, or use flash_attention_2",
    ),
    (
        [f"{ATTENTION}=sdpa", "actor_rollout_ref.ref.ulysses_sequence_parallel_size=2"],
        "ulysses_sequence_parallel_size=2 gives each rank a part of every sequence",
    ),
    (["+data.gem.gamma=0.5"], "data.gem.gamma is 0.5 and algorithm.gamma is 1.0"),
    (["+data.gem.horison=4"], "did you mean 'horizon'"),
    (["+data.gem.wrappers=concat", "algorithm.adv_estimator=grpo"], "gem_rebn"),
    (
        ["+data.gem.wrappers=concat", N, STOCK, "algorithm.adv_estimator=gem_grpo"],
        "trainer_mode=gem_sync",
    ),
    (
        [STOCK, "algorithm.adv_estimator=gem_reinforce++", "+algorithm.gem.per_env=True"],
        "per_env needs the environment",
    ),
    ([STOCK, "+data.gem.metrics=metrics.jsonl"], "needs gem's trainers, which write it"),
    pytest.param(
        ["algorithm.adv_estimator=gem_grpo"],
        "'grpo' compares episodes .*rollout.n is 1; set it to 2 or more",
        marks=pytest.mark.setting("Groups of one episode", "rejected"),
    ),
    (["algorithm.adv_estimator=gem_rloo"], "'rloo' compares episodes of one seed"),
    pytest.param(
        [N, "algorithm.adv_estimator=gem_grpo", "algorithm.norm_adv_by_std_in_grpo=False"],
        r"\+algorithm.gem.scale=False",
        marks=pytest.mark.setting("Estimator settings", "rejected"),
    ),
    (["algorithm.use_pf_ppo=True"], "for verl's own gae only"),
    (["algorithm.pf_ppo.weight_pow=3.0"], "algorithm.pf_ppo=.* applies to use_pf_ppo"),
    (["algorithm.lam=0.9"], r"algorithm.lam=0.9 applies to verl's own gae"),
    (["algorithm.kl_ctrl.kl_coef=0.01"], "applies to KL in the reward; remove it"),
    (["algorithm.kl_penalty=low_var_kl"], "actor.use_kl_loss=True"),
    (["+algorithm.gdpo_reward_keys=[acc]"], "applies to verl's own gdpo"),
    (["+algorithm.gdpo_reward_weights=[1.0]"], "applies to verl's own gdpo"),
    (["critic.enable=True"], "which only 'gae' uses"),
    (
        ["algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=success"],
        "set it to reward",
    ),
    (
        ["algorithm.filter_groups.enable=True", "trainer.use_v1=False"],
        "no effect in verl's legacy trainer",
    ),
    (["+algorithm.gem.no_such=1"], "does not take"),
]


@pytest.mark.parametrize(("settings", "message"), REJECTED, ids=str)
def test_unsupported_setting_is_rejected(settings: Sequence[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(GemConfig(ECHO, seeds=8, max_turn_tokens=6), *settings)


def loss_modes() -> list[str]:
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

    return sorted(set(POLICY_LOSS_REGISTRY) - {"bypass_mode"})  # it calls one of the others


@pytest.mark.parametrize("mode", loss_modes())
def test_every_accepted_loss_trains_opposite_turns_apart(mode: str) -> None:
    """The gradient of verl's loss has the sign of each token's own advantage, or is rejected."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.utils.config import omega_conf_to_dataclass

    config = GemConfig(ECHO, seeds=8)
    settings = settings_of(
        config,
        f"actor_rollout_ref.actor.policy_loss.loss_mode={mode}",
        "actor_rollout_ref.actor.policy_loss.dro_beta=0.1",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
    )
    logprobs = torch.full((1, 8), -1.0, requires_grad=True)
    advantages = torch.tensor([[1.0] * 4 + [-1.0] * 4])
    try:
        check_settings(settings, config)
    except ConfigError:
        assert mode == "geo_mean"
        return
    loss, _ = get_policy_loss_fn(mode)(
        old_log_prob=torch.full((1, 8), -1.0),
        log_prob=logprobs,
        advantages=advantages,
        response_mask=torch.ones(1, 8),
        loss_agg_mode="token-mean",
        config=omega_conf_to_dataclass(settings.actor_rollout_ref.actor),
    )
    loss.backward()
    assert logprobs.grad is not None
    assert torch.allclose(logprobs.grad, -advantages / 8, atol=1e-6)


def test_all_rejected_settings_are_reported_at_once() -> None:
    settings = [
        "algorithm.use_kl_in_reward=True",
        "reward.reward_model.enable=True",
        "data.max_response_length=4",
    ]
    with pytest.raises(ConfigError) as raised:
        check(
            GemConfig(ECHO, seeds=8, max_turn_tokens=6),
            *settings,
            "algorithm.adv_estimator=gem_grpo",
        )
    lines = str(raised.value).splitlines()
    assert lines[0] == "4 settings are rejected:"
    for setting in ("use_kl_in_reward", "reward_model.enable", "max_response_length", "rollout.n"):
        assert sum(setting in line for line in lines[1:]) == 1


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["algorithm.adv_estimator=gem_grpo", N], {"advantage": "grpo"}),
        (
            [
                "algorithm.adv_estimator=gem_grpo",
                N,
                "algorithm.norm_adv_by_std_in_grpo=False",
                "+algorithm.gem.scale=False",
            ],
            {"advantage": "grpo", "estimator_kwargs": {"scale": False}},
        ),
        ([*GAE], {"advantage": "gae"}),
        (
            [*GAE, "algorithm.lam=0.5", "+algorithm.gem.lam=0.5"],
            {"advantage": "gae", "estimator_kwargs": {"lam": 0.5}},
        ),
        (["algorithm.norm_adv_by_std_in_grpo=False"], {}),
        (["algorithm.filter_groups.enable=True"], {}),
        (["actor_rollout_ref.rollout.calculate_log_probs=False"], {}),
        (["actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"], {}),
        (
            [
                "+data.apply_chat_template_kwargs.enable_thinking=False",
                "+data.gem.template_kwargs.enable_thinking=False",
            ],
            {"template_kwargs": {"enable_thinking": False}},
        ),
    ],
    ids=[
        "rollout.n=2",
        "gem.scale=False",
        "gae",
        "gem.lam",
        "rebn",
        "filter_groups.metric=reward",
        "no logprobs",
        "flash-attn on two ranks",
        "template_kwargs",
    ],
)
def test_check_settings_accepts_the_remedy(
    settings: Sequence[str], expected: dict[str, Any]
) -> None:
    """The counterparts of rejected settings pass, and their values reach the config."""
    config = GemConfig(ECHO, seeds=8)
    assert check(config, *settings) == replace(config, **expected)


def test_grpo_without_scale_does_not_divide_by_the_standard_deviation() -> None:
    """The remedy for norm_adv_by_std_in_grpo=False gives the advantages of Dr. GRPO."""
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    settings = ["algorithm.norm_adv_by_std_in_grpo=False", N]
    config = GemConfig(ECHO, seeds=8, advantage="grpo", estimator_kwargs={"scale": False})
    algorithm = settings_of(config, *settings).algorithm
    tensors = {
        "response_mask": torch.ones(3, 1),
        "token_level_rewards": torch.tensor([[1.0], [4.0], [4.0]]),
    }
    advantages, _ = get_adv_estimator_fn("gem_grpo")(**tensors, index=["one"] * 3, config=algorithm)
    assert advantages[:, 0].tolist() == [-2.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("estimator", "alternative"),
    [
        ("grpo", "gem_grpo"),
        ("rloo", "gem_rloo"),
        ("reinforce_plus_plus", "gem_reinforce++"),
        ("opo", "gem_rebn"),
    ],
)
def test_verls_own_estimators_warn_once(estimator: str, alternative: str) -> None:
    settings = settings_of(GemConfig(ECHO, seeds=8), f"algorithm.adv_estimator={estimator}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        check_settings(settings, read_config(settings))
        check_settings(settings, read_config(settings))
    (warning,) = caught
    assert f"{estimator!r} counts a failed episode" in str(warning.message)
    assert f"algorithm.adv_estimator={alternative}," in str(warning.message)


@pytest.mark.parametrize("estimator", ["rebn", "grpo", "reinforce++"])
def test_gems_estimators_do_not_warn(estimator: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check(GemConfig(ECHO, seeds=8, advantage=estimator), N)
    assert caught == []


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_sequence_level_importance_correction_warns(level: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check(
            GemConfig(ECHO, seeds=8),
            f"algorithm.rollout_correction.rollout_is={level}",
            "actor_rollout_ref.rollout.calculate_log_probs=True",
        )
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == (level == "sequence")
    assert all("Set it to token" in message for message in messages)


@pytest.mark.parametrize(("estimator", "advantage"), [("grpo", 0.577), ("gem_grpo", 0.0)])
def test_failed_episode_changes_the_advantages_of_verls_own_grpo(
    estimator: str, advantage: float
) -> None:
    """The numbers of the warning: a group of two episodes with return 1 and a failed one."""
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    import gem_verl.plugin  # noqa: F401

    algorithm = settings_of(
        GemConfig(ECHO, seeds=8), f"algorithm.adv_estimator={estimator}"
    ).algorithm
    success = next(case for case in CASES if case.name == "multi-byte text").episodes[0]
    assert success.total_reward == 1.0
    episodes = (success, success, failed_episode())
    advantages, _ = get_adv_estimator_fn(estimator)(
        token_level_rewards=padded(
            [token_rewards(episode, END, algorithm)[0] for episode in episodes]
        ),
        response_mask=padded([to_batch(episode, END)[0]["response_mask"] for episode in episodes]),
        index=["one group"] * 3,
        config=algorithm,
    )
    assert advantages[:, 0].tolist() == pytest.approx([advantage, advantage, 0.0], abs=1e-3)
    assert torch.isfinite(advantages).all()


def padded(sequences: Sequence[Sequence[float]]) -> Any:
    tensors = [torch.tensor(sequence, dtype=torch.float32) for sequence in sequences]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)


def test_gems_trainer_checks_settings_before_it_loads_a_model() -> None:
    from verl.trainer.ppo.v1 import get_trainer_cls

    settings = settings_of(GemConfig(ECHO, seeds=8), "algorithm.use_kl_in_reward=True")
    with pytest.raises(ConfigError, match="use_kl_in_reward"):
        get_trainer_cls(settings.trainer.v1.trainer_mode)(settings)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"env_id": "test:Ecko-v0"}, UnknownNameError, "test:Echo-v0"),
        ({"eval_envs": ["test:Ecko-v0"]}, UnknownNameError, "test:Echo-v0"),
        (
            {
                "env_id": GUESS,
                "env_kwargs": {"max_number": 30},
                "eval_envs": ["game:Wordle-v0-easy"],
            },
            ConfigError,
            "Wordle.*'max_number'",
        ),
        ({"seeds": 8, "eval_seeds": [3]}, ConfigError, "are trained on"),
    ],
)
def test_unsupported_config_is_rejected(
    fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        GemConfig(**{"env_id": ECHO, **fields})


def test_unsupported_version_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gem_core.adapter_kit.declaration._installed", lambda *names: "0.8.0")
    with pytest.raises(ConfigError, match=r"supports verl >=0.9,<0.10, installed: 0.8.0"):
        check(GemConfig(ECHO, seeds=8))


@pytest.mark.parametrize("has_class", [True, False])
def test_trl_without_the_class_that_verl_patches_is_rejected(
    has_class: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL 1.10 has the class, a model with a value head; TRL 1.16 does not."""
    (tmp_path / "trl" / "experimental").mkdir(parents=True)
    (tmp_path / "trl" / "__init__.py").touch()
    if has_class:
        (tmp_path / "trl" / "experimental" / "ppo.py").write_text(
            "class AutoModelForCausalLMWithValueHead: ...\n"
        )
    for name in [name for name in sys.modules if name.partition(".")[0] == "trl"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        if has_class:
            assert check(GemConfig(ECHO, seeds=8)) == GemConfig(ECHO, seeds=8)
        else:
            with pytest.raises(ConfigError, match=re.escape(f"the TRL in {tmp_path}/trl has none")):
                check(GemConfig(ECHO, seeds=8))
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "trl"]:
            del sys.modules[name]


def test_agent_loop_file_overrides_data_gem() -> None:
    config = read_config(
        settings_of(GemConfig(ECHO, seeds=8)), {"env_id": MOODY, "horizon": "4,7,10@100"}
    )
    assert (config.env_id, config.limits(150).max_turns) == (MOODY, 7)
