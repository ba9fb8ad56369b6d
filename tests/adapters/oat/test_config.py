"""The config and the rejected oat settings, and the program that oat launches."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from snippets import shown_settings
from tiny_oat import oat_args
from worlds import ECHO

from gem_core.errors import ConfigError, UnknownNameError
from gem_oat import GemActor, GemConfig, GemLearner, program
from gem_oat.config import check_settings, learners, longest_episode


@pytest.mark.parametrize("page", ["docs/train_your_environment.md", "adapters/gem_oat/README.md"])
def test_settings_of_the_pages_are_accepted(page: str) -> None:
    config, settings = shown_settings(page, "gem_oat")
    check_settings(settings, config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout_batch_size": 32}, "several collections"),
        ({"train_batch_size": 12}, "carry over to the next batch"),
        (
            {"gpus": 3, "rollout_batch_size": 48, "train_batch_size": 16},
            "not a multiple of the 3 learner",
        ),
        ({"max_train": 8}, "less than one batch"),
        (
            {"rollout_batch_size_per_device": 4, "rollout_batch_size": 4, "train_batch_size": 4},
            "do not fit",
        ),
        (
            {"gpus": 16, "rollout_batch_size": 256, "train_batch_size": 256, "max_train": 256},
            "too few for 16 actors",
        ),
        ({"reinforce_update": True}, "divides by zero"),
        pytest.param(
            {"asynchronous": True},
            "set it to False",
            marks=pytest.mark.setting("Asynchronous training", "rejected"),
        ),
        ({"resume_dir": "runs/checkpoint"}, "is not a folder"),
        pytest.param(
            {"kl_penalty_coef": 0.1},
            "use beta",
            marks=pytest.mark.setting("KL in the reward", "rejected"),
        ),
        ({"reward_scale": 2.0}, "scale the rewards in the environment"),
        ({"temperature": 0.7}, "set tis_c=None"),
        ({"ignore_no_eos": True}, "on_cut='mask'"),
        pytest.param(
            {"non_stop_penalty": -1.0},
            "on_cut='mask'",
            marks=pytest.mark.setting("Trainer's own rewards", "rejected"),
        ),
        pytest.param(
            {"whiten_adv": True},
            "needs whiten_adv=False",
            marks=pytest.mark.setting("Estimator settings", "rejected"),
        ),
        ({"gamma": 0.5}, "needs gamma=0.9"),
        ({"num_samples": 4}, "needs num_samples=1"),
        ({"critic_type": "ppo"}, "needs critic_type='drgrpo'"),
        ({"pi_buffer_maxlen_per_device": 4}, "needs pi_buffer_maxlen_per_device"),
        ({"buffer_clear_every": 5}, "needs buffer_clear_every=1"),
        ({"eval_steps": 5}, "needs eval_steps=-1"),
        ({"eval_generate_max_length": 512}, "needs eval_generate_max_length=6"),
    ],
)
def test_unsupported_setting_is_rejected(changes: dict[str, Any], message: str) -> None:
    config = GemConfig(ECHO, seeds=8, gamma=0.9, horizon="2,5@10", max_turn_tokens=6)
    with pytest.raises(ConfigError, match=message):
        check_settings(oat_args(config, **changes), config)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        pytest.param(
            {"advantage": "grpo"},
            ConfigError,
            "samples is 1; set it to 2 or more",
            marks=pytest.mark.setting("Groups of one episode", "rejected"),
        ),
        ({"advantage": "rebm"}, UnknownNameError, "rebn"),
        (
            {"advantage": "gae", "estimator_kwargs": {"values": [[0.0]]}},
            ConfigError,
            "trainer's critic",
        ),
        ({"samples": 0}, ConfigError, "integer >= 1"),
        ({"concurrency": 1.5}, ConfigError, "integer >= 1"),
        ({"episode_deadline": 60.0}, ConfigError, "step_deadline"),
        ({"seeds": 0}, ConfigError, "nothing to train on"),
        ({"gamma": 1.5}, ConfigError, "between 0 and 1"),
        ({"estimator_kwargs": {"per_envs": True}}, ConfigError, "does not take"),
        ({"seeds": [1_000_001], "eval_seeds": 4}, ConfigError, "are trained on"),
        ({"env_id": "test:Ecko-v0"}, UnknownNameError, "test:Echo-v0"),
    ],
)
def test_unsupported_config_is_rejected(
    fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        GemConfig(**{"env_id": ECHO, **fields})


def test_lora_with_a_critic_is_rejected() -> None:
    config = GemConfig(ECHO, seeds=8, advantage="gae")
    with pytest.raises(ConfigError, match="lora_rank=4 also applies to oat's critic"):
        check_settings(oat_args(config, lora_rank=4), config)


def test_lora_that_sends_adapters_only_is_rejected() -> None:
    config = GemConfig(ECHO, seeds=8)
    check_settings(oat_args(config, lora_rank=4), config)
    with pytest.raises(ConfigError, match="oat sends the merged weights"):
        check_settings(oat_args(config, lora_rank=4, lora_sync_only=True), config)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param(
            "apply_chat_template",
            True,
            marks=pytest.mark.setting("Trainer's own template settings", "rejected"),
        ),
        ("eval_n", 4),
        ("max_epochs", 4),
        ("max_eval", 64),
        ("max_sgd_steps", 1),
        ("remote_rm_url", "http://localhost:1"),
        ("num_prompt_epoch", 2),
        ("sync_params_every", 2),
        ("whiten_rewards", True),
    ],
)
def test_setting_without_effect_is_rejected(name: str, value: Any) -> None:
    config = GemConfig(ECHO, seeds=8)
    check_settings(oat_args(config), config)
    with pytest.raises(ConfigError, match=f"{name}={value} is not supported"):
        check_settings(oat_args(config, **{name: value}), config)


def test_all_rejected_settings_are_reported_at_once() -> None:
    config = GemConfig(ECHO, seeds=8, gamma=0.9)
    with pytest.raises(ConfigError) as raised:
        check_settings(
            oat_args(config, gamma=0.5, whiten_adv=True, reward_scale=2.0, max_train=8), config
        )
    assert str(raised.value).startswith("4 settings are rejected")
    for name in ("gamma=0.5", "whiten_adv=True", "reward_scale", "max_train=8"):
        assert name in str(raised.value)
    with pytest.raises(ConfigError, match="2 settings are rejected"):
        GemConfig(ECHO, advantage="grpo", episode_deadline=1.0)


def test_unsupported_version_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    config = GemConfig(ECHO, seeds=8)
    monkeypatch.setattr("gem_core.adapter_kit.declaration._installed", lambda *names: "0.1.4")
    with pytest.raises(ConfigError, match=r"supports oat-llm >=0.2.4,<0.3, installed: 0.1.4"):
        check_settings(oat_args(config), config)


@pytest.mark.parametrize(
    ("fields", "turns"),
    [
        ({"env_id": ECHO}, None),
        ({"env_id": ECHO, "horizon": "2,5@10"}, 5),
        ({}, 4),
        ({"env_kwargs": {"max_turns": 40}}, 40),
        ({"env_kwargs": {"max_turns": 40}, "horizon": 9}, 9),
    ],
)
def test_group_longer_than_a_batch_is_rejected(fields: dict[str, Any], turns: int | None) -> None:
    config = GemConfig(**{"env_id": "game:GuessTheNumber-v0-easy", "samples": 5, **fields})
    assert longest_episode(config) == turns
    if turns is None or 5 * turns <= 16:
        check_settings(oat_args(config), config)
        return
    with pytest.raises(ConfigError, match=rf"5 episode\(s\) of {turns} turns .* do not fit"):
        check_settings(oat_args(config), config)


def test_program_has_one_gem_actor_for_each_gem_learner() -> None:
    config = GemConfig(ECHO, seeds=8, advantage="gae", estimator_kwargs={"lam": 0.8})
    args = oat_args(
        config, gpus=2, rollout_batch_size=32, train_batch_size=32, master_addr="127.0.0.1"
    )
    nodes, _ = program(config, args)
    classes = [node.constructor for node, _, _ in nodes.nodes]
    assert classes.count(GemActor) == classes.count(GemLearner) == learners(args) == 2
    assert (args.critic_type, args.lam) == ("ppo", 0.8)


@pytest.mark.parametrize(
    ("collocate", "gpus", "groups", "count"), [(True, 4, 1, 4), (False, 4, 2, 4), (False, 5, 1, 3)]
)
def test_learners_counts_as_oat_does(collocate: bool, gpus: int, groups: int, count: int) -> None:
    args = oat_args(GemConfig(ECHO), collocate=collocate, gpus=gpus, num_groups=groups)
    assert learners(args) == count


def test_seeds_are_listed_and_shuffled_once_per_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The actor asks for a task on its event loop; a list of 100,000 seeds takes milliseconds."""
    calls: Counter[str] = Counter()
    listed, shuffle = GemConfig.train_seeds.fget, random.Random.shuffle  # type: ignore[attr-defined]

    def count_list(config: GemConfig) -> Any:
        calls["listed"] += 1
        return listed(config)

    def count_shuffle(rng: random.Random, seeds: list[int]) -> None:
        calls["shuffled"] += 1
        shuffle(rng, seeds)

    config = GemConfig(ECHO, seeds=100)
    monkeypatch.setattr(GemConfig, "train_seeds", property(count_list))
    monkeypatch.setattr(random.Random, "shuffle", count_shuffle)
    for index in range(100):  # two epochs of the second of two actors
        config.task_of(index, 1, 2, order=7)
    assert calls == {"listed": 1, "shuffled": 2}


def test_actors_share_the_seeds_in_a_new_order_every_epoch() -> None:
    config = GemConfig(ECHO, seeds=10, samples=2)
    shares = [
        [config.task_of(i, actor, 3, order=7).seed for i in range(2 * len(range(actor, 10, 3)))]
        for actor in range(3)
    ]
    assert sorted(seed for share in shares for seed in share) == sorted(2 * list(range(10)))
    orders = [[config.task_of(i, order=order).seed for i in range(20)] for order in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    epochs = [config.task_of(i, order=7).seed for i in range(40)]
    assert epochs[:20] != epochs[20:]
    assert epochs[0] == epochs[1]
