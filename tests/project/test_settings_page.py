"""Tests of docs/settings.md: each cell of its table names what a test of that adapter proves."""

from __future__ import annotations

import re

import pytest
from project import ROOT

PAGE = ROOT / "docs" / "settings.md"
ADAPTERS = ("trl", "verl", "openrlhf", "oat", "rl2", "skyrl", "tinker")
STATES = ("works", "rejected", "not offered")

TRL = "test_trainer.py test_unsupported_setting_is_rejected_at_construction"
REJECTED = "test_config.py test_unsupported_setting_is_rejected"
CONFIG = "test_config.py test_unsupported_config_is_rejected"
SKYRL = "test_config.py test_setting_is_rejected_with_its_remedy"
TABLE = "test_conformance.py test_conformance_table_passes"
TESTS: dict[str, tuple[str, ...]] = {
    "Token-level ratios": (TABLE, TABLE, TABLE, TABLE, TABLE, TABLE, TABLE),
    "Sequence-level ratios (GSPO)": (
        f"{TRL} importance_sampling_level",
        "test_conformance.py test_gspo_keeps_the_advantage_of_each_turn",
        f"{REJECTED} actor.policy_loss_type",
        "",
        "",
        f"{SKYRL} gspo",
        "test_config.py test_rejected_setting_names_the_remedy gspo",
    ),
    "Losses with one advantage per sequence": (
        "test_trainer.py test_trainer_with_one_advantage_per_sequence_is_rejected",
        f"{REJECTED} geo_mean",
        "",
        "",
        "",
        f"{SKYRL} cross_entropy",
        "test_config.py test_rejected_setting_names_the_remedy cross_entropy",
    ),
    "Estimator settings of the trainer": (
        f"{TRL} scale_rewards",
        f"{REJECTED} norm_adv_by_std_in_grpo",
        f"{REJECTED} algo.advantage.gamma",
        f"{REJECTED} whiten_adv",
        f"{REJECTED} adv.estimator",
        f"{SKYRL} grpo_norm_by_std",
        "",
    ),
    "Groups of one episode": (
        "",
        f"{REJECTED} gem_grpo",
        "test_config.py test_config_beyond_the_settings_is_rejected n_samples_per_prompt",
        f"{CONFIG} samples",
        f"{REJECTED} responses_per_prompt",
        "test_config.py test_settings_that_depend_on_the_config_are_rejected n_samples_per_prompt",
        "test_config.py test_rejected_setting_names_the_remedy grpo",
    ),
    "Critic and `gae`": (
        "test_trainer.py test_unsupported_config_is_rejected gae",
        "test_critic.py test_values_are_read_before_each_turn_and_after_the_end",
        "test_trainer.py test_values_are_read_and_trained_where_turns_begin",
        "test_learner.py test_critic_bootstraps_only_after_a_cut",
        "test_critic.py test_values_are_read_and_trained_where_turns_begin",
        "test_conformance.py test_critic_trains_the_start_of_each_turn",
        "test_config.py test_estimator_with_a_critic_is_rejected gae",
    ),
    "Rewards of the trainer": (
        "test_trainer.py test_weighted_reward_function_is_rejected",
        f"{REJECTED} custom_reward_function",
        f"{REJECTED} reward.overlong_buffer_len",
        f"{REJECTED} non_stop_penalty",
        "",
        f"{SKYRL} zero_reward_on_non_stop",
        "",
    ),
    "KL in the reward": (
        "",
        f"{REJECTED} use_kl_in_reward",
        f"{REJECTED} algo.kl.init_coef",
        f"{REJECTED} kl_penalty_coef",
        f"{REJECTED} actor.kl.type=reward",
        f"{SKYRL} use_kl_in_reward",
        "",
    ),
    "Turn limits and tools of the trainer": (
        "test_trainer.py test_unsupported_argument_of_the_trainer_is_rejected tools",
        f"{REJECTED} multi_turn.max_assistant_turns",
        "",
        "",
        f"{REJECTED} rollout.max_turns",
        f"{SKYRL} generator.max_turns",
        "",
    ),
    "Template settings that differ from `template_kwargs`": (
        f"{TRL} chat_template_kwargs",
        f"{REJECTED} apply_chat_template_kwargs",
        f"{REJECTED} data.input_template",
        "",
        "",
        f"{SKYRL} chat_template_kwargs",
        "",
    ),
    "Rewritten history": (
        "test_runs.py test_several_sequences_per_episode_are_trained_with_their_advantages",
        "test_rollout.py test_rewritten_history_becomes_several_sequences",
        "test_trainer.py test_all_sequences_are_trained_with_their_turns",
        TABLE,
        "test_rollout.py test_rewritten_history_becomes_several_sequences_of_one_trajectory",
        TABLE,
        "test_training.py test_rewritten_history_trains_several_sequences_per_episode",
    ),
    '`GemConfig(history="template")`': (
        "test_runs.py test_several_sequences_per_episode_are_trained_with_their_advantages",
        "test_training.py test_critic_run_records_episodes_as_trained",
        "test_trainer.py test_history_as_the_template_writes_it",
        "test_runs.py test_thinking_is_removed_from_history_and_every_turn_is_trained",
        "test_rollout.py test_history_as_the_template_writes_it",
        "test_training.py test_critic_run_records_episodes_as_trained",
        "test_training.py test_history_as_the_template_writes_it",
    ),
    '`GemConfig(execution="process")`': (
        "test_runs.py test_environments_run_in_processes_that_end",
        "test_training.py test_critic_run_trains_every_update",
        "test_rollout.py test_environments_run_outside_of_the_engine_s_process",
        "test_runs.py test_environments_run_in_processes_that_end",
        "test_rollout.py test_environments_run_in_their_own_processes",
        "test_training.py test_critic_run_trains_every_update",
        "test_training.py test_environments_run_in_processes",
    ),
    "Resume from a checkpoint": (
        "test_runs.py test_resumed_run_continues_seeds_horizon_records_and_metrics",
        "test_training.py test_resumed_run_continues_as_without_the_interruption",
        "test_training.py test_run_with_a_critic_resumes_asynchronously_after_ctrl_c",
        "test_runs.py test_resumed_run_trains_every_episode_once",
        "test_training.py test_run_with_a_critic_resumes_after_ctrl_c",
        "test_training.py test_resumed_run_continues_after_its_last_update",
        "test_training.py test_resumed_run_equals_a_run_without_a_break",
    ),
    "Runs in which every episode fails": (
        "test_runs.py test_failing_environment_stops_the_run",
        "test_training.py test_run_in_which_every_episode_fails_stops_with_the_traceback",
        "test_trainer.py test_run_stops_after_three_updates_of_failed_episodes",
        "test_runs.py test_failing_environment_stops_the_run",
        "test_training.py test_two_ranks_train_and_stop_together_when_every_episode_fails",
        "test_training.py test_failing_environment_ends_the_run",
        "test_training.py test_failing_episodes_stop_the_run_and_do_not_move_the_weights",
    ),
    "Failed episodes": (TABLE, TABLE, TABLE, TABLE, TABLE, TABLE, TABLE),
    "Growing horizon": (
        "test_trainer.py test_horizon_grows_with_the_step",
        "test_rollout.py test_horizon_grows_with_the_step",
        "test_rollout.py test_horizon_and_weight_version_follow_the_step_of_the_engine",
        "test_rollout.py test_horizon_grows_with_the_update",
        "test_rollout.py test_horizon_grows_with_the_step",
        "test_training.py test_critic_run_trains_every_update horizon",
        "test_training.py test_resumed_run_equals_a_run_without_a_break horizon",
    ),
    "Asynchronous training": (
        "",
        "test_rollout.py test_async_trainers_get_the_sampled_tokens_of_resumed_turns",
        "test_training.py test_run_with_a_critic_resumes_asynchronously_after_ctrl_c",
        f"{REJECTED} asynchronous",
        "",
        "test_training.py test_async_run_trains_on_earlier_weights",
        "test_training.py test_one_step_off_plays_with_the_weights_before_the_update",
    ),
    "Plugin event `batch_end`": (
        "test_trainer.py test_plugins_get_the_whole_batch_once",
        "test_rollout.py test_plugins_get_the_whole_batch_once",
        "test_trainer.py test_plugins_get_the_whole_batch_once",
        "test_learner.py test_plugins_get_the_whole_batch_once",
        "test_rollout.py test_plugins_get_the_whole_batch_once",
        "test_rollout.py test_plugins_get_the_whole_batch_once",
        "test_training.py test_plugins_get_the_whole_batch_once",
    ),
}
"""For each setting and adapter: the test's file, its name and a word in it; "" if not offered."""


def table() -> dict[str, list[str]]:
    rows = re.findall(r"^\| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    cells = [row.split(" | ") for row in rows]
    return {name: states for name, _, *states in cells[1:]}


def test_table_has_the_settings_that_tests_cover() -> None:
    assert list(table()) == list(TESTS)
    assert all(len(states) == len(ADAPTERS) for states in table().values())


@pytest.mark.parametrize("setting", TESTS)
def test_each_cell_has_a_test(setting: str) -> None:
    for adapter, state, test in zip(ADAPTERS, table()[setting], TESTS[setting]):
        assert state in STATES
        assert (state == "not offered") == (not test)
        if test:
            file, name, *words = test.split()
            source = (ROOT / "tests" / "adapters" / adapter / file).read_text(encoding="utf-8")
            assert f"def {name}(" in source
            assert all(word in source for word in words)
            rejects = "rejected" in name
            assert state == ("rejected" if rejects else "works")
