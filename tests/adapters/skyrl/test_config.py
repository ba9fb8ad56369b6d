"""SkyRL's settings: those that would break a promise or have no effect are rejected together."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from snippets import shown_settings

from gem_core import Env, register
from gem_core.adapter_kit.settings import warn_if_tied
from gem_core.env.registry import environments
from gem_core.errors import ConfigError, EnvError
from gem_core.policies.tiny import load_tiny
from gem_skyrl import GemConfig, train
from gem_skyrl.config import check_settings, skyrl_config

GAME = "game:GuessTheNumber-v0-easy"
SMALL = ["trainer.train_batch_size=8", "trainer.policy_mini_batch_size=8"]


class Broken(Env):
    """Raises at its first reset."""

    def on_reset(self, options: Any) -> Any:
        raise RuntimeError("broken")

    def on_step(self, action: str) -> Any:
        raise NotImplementedError


def check(*settings: str, **fields: Any) -> None:
    config = GemConfig(GAME, **fields)
    check_settings(skyrl_config(config, [*SMALL, *settings]), config)


def rejection(*settings: str, **fields: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        check(*settings, **fields)
    return str(raised.value)


def test_settings_of_the_page_are_accepted() -> None:
    config, settings = shown_settings("adapters/gem_skyrl/README.md", "gem_skyrl")
    check_settings(skyrl_config(config, settings), config)


def test_defaults_are_accepted() -> None:
    check()
    check(advantage="grpo")
    check("trainer.critic.model.path=a/critic", advantage="gae", estimator_kwargs={"lam": 0.8})
    check("trainer.eval_interval=2", eval_seeds=4, history="template", gamma=0.5)
    check(
        "trainer.algorithm.use_kl_loss=true",
        "trainer.algorithm.policy_loss_type=rollout_is",
        "trainer.algorithm.off_policy_correction.tis_ratio_type=token",
        "trainer.fully_async.enabled=true",
        "generator.sampling_params.temperature=0.7",
        "generator.sampling_params.stop=['</answer>']",
        "generator.sampling_params.logprobs=0",  # the same as 1
        "generator.use_cache_salt=false",
    )


@pytest.mark.parametrize(
    ("setting", "remedy"),
    [
        ("data.train_data=['a.parquet']", "seeds"),
        ("data.val_data=['a.parquet']", "eval_seeds"),
        ("environment.env_class=gsm8k", "env_id"),
        ("environment.skyrl_gym.max_env_workers=4", "env_id"),
        pytest.param(
            "generator.max_turns=4",
            "horizon",
            marks=pytest.mark.setting("Trainer's own turn limits and tools", "rejected"),
        ),
        ("generator.batched=true", "at the same time"),
        ("generator.chat_template.name_or_path=qwen3_with_thinking", "tokenizer"),
        pytest.param(
            "generator.chat_template_kwargs={enable_thinking: false}",
            "template_kwargs",
            marks=pytest.mark.setting("Trainer's own template settings", "rejected"),
        ),
        ("generator.use_conversation_multi_turn=false", "history"),
        ("generator.append_eos_token_after_stop_str_in_multi_turn=false", "sampled ids"),
        pytest.param(
            "generator.zero_reward_on_non_stop=true",
            "on_cut='mask'",
            marks=pytest.mark.setting("Trainer's own rewards", "rejected"),
        ),
        ("generator.apply_overlong_filtering=true", "on_cut='mask'"),
        ("generator.vision_language_generator=true", "text environments"),
        ("generator.merge_stepwise_output=true", "already merged"),
        ("generator.step_wise_trajectories=false", "several sequences"),
        ("trainer.algorithm.advantage_estimator=grpo", "GemConfig(advantage=...)"),
        ("trainer.algorithm.gamma=0.3", "GemConfig(gamma=...)"),
        ("trainer.algorithm.lambd=0.9", "'lam'"),
        pytest.param(
            "trainer.algorithm.grpo_norm_by_std=false",
            "{'scale': False}",
            marks=pytest.mark.setting("Estimator settings", "rejected"),
        ),
        pytest.param(
            "trainer.algorithm.use_kl_in_reward=true",
            "use_kl_loss=true",
            marks=pytest.mark.setting("KL in the reward", "rejected"),
        ),
        ("trainer.algorithm.advantage_batch_normalize=true", "rebn"),
        ("trainer.algorithm.zero_variance_filter=true", "drops episodes"),
        pytest.param(
            "trainer.algorithm.dynamic_sampling.type=filter",
            "drops episodes",
            marks=pytest.mark.setting("DAPO filter", "rejected"),
        ),
        pytest.param(
            "trainer.algorithm.policy_loss_type=gspo",
            "one ratio per sequence; use regular",
            marks=pytest.mark.setting("GSPO", "rejected"),
        ),
        pytest.param(
            "trainer.algorithm.policy_loss_type=cross_entropy",
            "ignores advantages; use regular",
            marks=pytest.mark.setting("One advantage per sequence", "rejected"),
        ),
        (
            "trainer.algorithm.off_policy_correction.sequence_mask_metric=product",
            "use geometric",
        ),
        ("trainer.algorithm.off_policy_correction.tis_ratio_type=sequence", "use token"),
        ("generator.sampling_params.logprobs=null", "set it to 1"),
        ("generator.eval_sampling_params={logprobs: null}", "set it to 1"),
        ("generator.inference_engine.enable_return_routed_experts=true", "does not replay"),
        ("trainer.fully_async.simulate_training=true", "nothing would be trained"),
        ("trainer.critic.model.path=a/critic", "uses no critic; remove it"),
        ("trainer.eval_interval=5", "eval_seeds"),
        ("trainer.train_batch_size=2048", "GemConfig(seeds=...) or a smaller batch"),
    ],
)
def test_setting_is_rejected_with_its_remedy(setting: str, remedy: str) -> None:
    message = rejection(setting)
    assert setting.split("=")[0].split(".")[-1] in message or "environment" in message
    assert remedy in message


@pytest.mark.setting("Groups of one episode", "rejected")
def test_settings_that_depend_on_the_config_are_rejected() -> None:
    assert "generator.n_samples_per_prompt is 1" in rejection(
        "generator.n_samples_per_prompt=1", advantage="grpo"
    )
    assert "needs a critic; set it" in rejection(advantage="gae")
    assert "max_generate_length=16" in rejection(
        "generator.sampling_params.max_generate_length=16", max_turn_tokens=24
    )


def test_all_rejected_settings_are_reported_at_once() -> None:
    message = rejection("generator.max_turns=4", "trainer.algorithm.gamma=0.5", advantage="gae")
    assert message.startswith("3 settings are rejected:")


def test_bad_settings_and_environments_fail_before_ray_starts() -> None:
    import ray

    with pytest.raises(ConfigError, match="max_turns"):
        train(GemConfig(GAME), [*SMALL, "generator.max_turns=4"])
    register("test:Broken-v0", Broken, replace=True)
    with pytest.raises(EnvError, match="failed with seed 0 before training"):
        train(GemConfig("test:Broken-v0"), [*SMALL, "trainer.logger=console"])
    environments.remove("test:Broken-v0")
    assert not ray.is_initialized()


def test_prompt_without_a_seed_names_the_experiment() -> None:
    config = GemConfig(GAME)
    assert config.task_of({"seed": 7, "data_source": GAME}).seed == 7
    with pytest.raises(ConfigError, match=r"use gem_skyrl\.GemExp"):
        config.task_of({"data_source": "gsm8k"})


def test_tied_weights_are_reported(model: str) -> None:
    from transformers import AutoConfig

    with pytest.warns(UserWarning, match="save_untied"):
        warn_if_tied(load_tiny()[0].config, "SkyRL's FSDP worker")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_tied(AutoConfig.from_pretrained(model), "SkyRL's FSDP worker")


def test_narrowed_sampling_warns() -> None:
    with pytest.warns(UserWarning, match=r"top_p=0\.9"):
        check("generator.sampling_params.top_p=0.9")
