"""The RL2 settings that `check_settings` rejects, the data files, and the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from snippets import shown_settings
from worlds import ECHO

from gem_core.errors import ConfigError, UnknownNameError
from gem_rl2 import GemConfig, compose
from gem_rl2.__main__ import config_of
from gem_rl2.config import check_settings, longest_sequence, require_release
from gem_rl2.trainer import prepare_settings, write_data

Settings = Callable[..., Any]


@pytest.mark.parametrize("page", ["docs/train_your_environment.md", "adapters/gem_rl2/README.md"])
def test_settings_of_the_pages_are_accepted(page: str) -> None:
    config, settings = shown_settings(page, "gem_rl2")
    check_settings(compose(settings), config)


@pytest.mark.parametrize(
    ("fields", "overrides", "message"),
    [
        pytest.param(
            {},
            ["adv.estimator=gae"],
            "GemConfig(advantage=...)",
            marks=pytest.mark.setting("Estimator settings", "rejected"),
        ),
        ({"gamma": 0.9}, ["adv.gamma=0.5"], "remove adv.gamma"),
        ({}, ["adv.norm_var=true"], "apply to RL2's own estimators only"),
        ({}, ["adv.lamda=0.9"], "apply to RL2's own estimators only"),
        pytest.param(
            {},
            ["actor.kl.coef=0.1", "actor.kl.type=reward"],
            "actor.kl.type=loss",
            marks=pytest.mark.setting("KL in the reward", "rejected"),
        ),
        ({}, ["rollout.env_path=mine.py"], "remove it"),
        pytest.param(
            {},
            ["rollout.max_turns=8"],
            "GemConfig(horizon=...)",
            marks=pytest.mark.setting("Trainer's own turn limits and tools", "rejected"),
        ),
        ({}, ["train_data.path=mine.jsonl"], "gem writes the train and test data"),
        ({"seeds": 4}, [], "without a batch"),
        pytest.param(
            {"advantage": "grpo"},
            [],
            "responses_per_prompt is 1; set it to 2",
            marks=pytest.mark.setting("Groups of one episode", "rejected"),
        ),
        (
            {"max_turn_tokens": None},
            ["rollout.train_sampling_params.max_new_tokens=null"],
            "a turn has no token cap",
        ),
        (
            {"max_turn_tokens": None, "eval_seeds": 2},
            ["rollout.test_sampling_params.max_new_tokens=null", "trainer.test_freq=5"],
            "for evaluation also in those of the test data",
        ),
        (
            {"max_turn_tokens": 8},
            [],
            "max_new_tokens=6 in RL2's train and test sampling parameters differs from "
            "GemConfig(max_turn_tokens=8)",
        ),
        (
            {},
            ["rollout.test_sampling_params.max_new_tokens=9"],
            "max_new_tokens=9 in RL2's test sampling parameters differs",
        ),
        ({}, ["actor.max_length_per_device=null"], "actor.max_length_per_device is not set"),
        ({}, ["trainer.test_freq=5"], "GemConfig(eval_seeds=...)"),
        ({"eval_seeds": 2}, [], "set trainer.test_freq, or remove eval_seeds"),
        ({}, ["actor.freeze_steps=2"], "'rebn' has none; set it to 0"),
    ],
)
def test_unsupported_setting_is_rejected(
    settings_for: Settings,
    tmp_path: Path,
    fields: dict[str, Any],
    overrides: list[str],
    message: str,
) -> None:
    with pytest.raises(ConfigError) as error:
        prepare_settings(
            settings_for(*overrides), GemConfig(ECHO, **{"max_turn_tokens": 6, **fields}), tmp_path
        )
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("fields", "overrides"),
    [
        ({"max_turn_tokens": 8}, ["rollout.train_sampling_params.max_new_tokens=null"]),  # default
        ({"max_turn_tokens": None, "eval_seeds": 2}, ["trainer.test_freq=5"]),
        ({"max_turn_tokens": None}, ["rollout.test_sampling_params.max_new_tokens=9"]),
        ({"max_turn_tokens": None}, ["rollout.test_sampling_params.max_new_tokens=null"]),
    ],
)
def test_token_caps_that_take_effect_are_accepted(
    settings_for: Settings, fields: dict[str, Any], overrides: list[str]
) -> None:
    check_settings(settings_for(*overrides), GemConfig(ECHO, **fields))


def test_model_that_only_transformers_5_reads_is_rejected(
    settings_for: Settings, tmp_path: Path
) -> None:
    file = tmp_path / "config.json"
    settings = settings_for(f"actor.model_name={tmp_path}")
    fields: dict[str, Any] = {"rope_parameters": {"rope_theta": 100000.0}}
    file.write_text(json.dumps(fields), encoding="utf-8")
    with pytest.raises(ConfigError, match='add "rope_theta": 100000.0 to its config.json'):
        prepare_settings(settings, GemConfig(ECHO, max_turn_tokens=6), tmp_path)
    file.write_text(json.dumps({**fields, "rope_theta": 100000.0}), encoding="utf-8")
    tokenizer = tmp_path / "tokenizer_config.json"
    tokenizer.write_text('{"tokenizer_class": "TokenizersBackend"}', encoding="utf-8")
    with pytest.raises(ConfigError, match='set "tokenizer_class" to "PreTrainedTokenizerFast"'):
        prepare_settings(settings, GemConfig(ECHO, max_turn_tokens=6), tmp_path)
    tokenizer.write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}', encoding="utf-8")
    prepare_settings(settings, GemConfig(ECHO, max_turn_tokens=6), tmp_path)


def test_all_rejected_settings_are_reported_at_once(settings_for: Settings, tmp_path: Path) -> None:
    settings = settings_for("adv.norm_var=true", "rollout.max_turns=8", "trainer.test_freq=5")
    with pytest.raises(ConfigError, match="3 settings are rejected") as error:
        prepare_settings(settings, GemConfig(ECHO, max_turn_tokens=6), tmp_path)
    for setting in ("adv.norm_var", "rollout.max_turns=8", "trainer.test_freq=5"):
        assert setting in str(error.value)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"history": "rewrite"}, ConfigError, "'append' or 'template'"),
        ({"hosts": 2}, ConfigError, "execution='ray'"),
        ({"advantage": "rebm"}, UnknownNameError, "rebn"),
        ({"gamma": 1.5}, ConfigError, "between 0 and 1"),
        ({"horizon": "soon"}, ConfigError, "horizon"),
        ({"env_id": "test:Ecko-v0"}, UnknownNameError, "test:Echo-v0"),
    ],
)
def test_unsupported_config_is_rejected(
    fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        GemConfig(**{"env_id": ECHO, **fields})


def test_rewritten_history_is_accepted(settings_for: Settings, tmp_path: Path) -> None:
    config = GemConfig(ECHO, wrappers=["concat_chat(window=2)"], max_turn_tokens=6)
    assert config.rewriting_wrapper() == "concat_chat"
    prepare_settings(settings_for(), config, tmp_path)


def test_settings_name_the_data_and_the_estimator(settings_for: Settings, tmp_path: Path) -> None:
    settings = settings_for("trainer.test_freq=5")
    prepare_settings(
        settings, GemConfig(ECHO, seeds=16, eval_seeds=3, gamma=0.9, max_turn_tokens=6), tmp_path
    )
    assert (settings.adv.estimator, settings.adv.gamma) == ("gem", 0.9)
    train, test = (
        [json.loads(line)["extra_info"]["seed"] for line in Path(path).read_text().splitlines()]
        for path in (settings.train_data.path, settings.test_data.path)
    )
    assert train == list(range(16))
    assert test == [1_000_000, 1_000_001, 1_000_002]


def test_rl2s_own_dataset_reads_the_data(settings_for: Settings, tmp_path: Path) -> None:
    from RL2.datasets import RLDataset

    config, settings = GemConfig(ECHO, seeds=4), settings_for("train_data.responses_per_prompt=2")
    settings.train_data.path, _ = write_data(config, tmp_path)
    data = RLDataset(settings.train_data, None)
    rows = data.collate_fn([data[i] for i in range(4)])
    assert [config.task_of(row).seed for row in rows] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_longest_sequence_multiplies_by_the_devices_that_share_it(settings_for: Settings) -> None:
    per_device = "actor.max_length_per_device=100"
    assert longest_sequence(settings_for(per_device)) == 100
    shared = settings_for(per_device, "actor.sp_size=2", "actor.tp_size=3")
    assert longest_sequence(shared) == 600


def test_longest_sequence_fits_all_models_that_rl2_loads(settings_for: Settings) -> None:
    critic = settings_for("critic.max_length_per_device=300")
    assert (longest_sequence(critic), longest_sequence(critic, with_critic=True)) == (512, 300)
    inference = settings_for("critic.max_inference_length_per_device=200")
    assert longest_sequence(inference, with_critic=True) == 200
    reference = settings_for(
        "ref_actor.max_inference_length_per_device=100", "actor.kl.coef=0.1", "actor.kl.type=loss"
    )
    assert longest_sequence(reference) == 100


def test_command_line_sets_the_config() -> None:
    settings = compose(
        [
            "+gem.env_id=game:GuessTheNumber-v0-easy",
            "+gem.gamma=0.9",
            "+gem.seeds=8",
            "+gem.wrappers=[react]",
        ]
    )
    config = config_of(settings)
    assert (config.env_id, config.gamma, config.train_seeds, config.all_wrappers) == (
        "game:GuessTheNumber-v0-easy",
        0.9,
        list(range(8)),
        (("react", {}),),
    )
    assert "gem" not in settings
    with pytest.raises(ConfigError, match="has no env_id"):
        config_of(compose([]))
    with pytest.raises(ConfigError, match="did you mean 'gamma' instead of 'gama'"):
        config_of(compose(["+gem.env_id=game:GuessTheNumber-v0-easy", "+gem.gama=0.9"]))


def test_unsupported_version_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gem_core.adapter_kit.declaration._installed", lambda *names: "0.0.1.post1")
    with pytest.raises(ConfigError, match=r"supports rl-square ==0.0.2, installed: 0.0.1.post1"):
        require_release()


def test_checkout_with_the_version_of_the_release_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "RL2" / "trainer" / "config"
    monkeypatch.setattr("gem_rl2.config.settings_folder", lambda: folder)
    with pytest.raises(ConfigError, match="is not the release rl-square ==0.0.2"):
        compose()
