"""Settings of the Tinker adapter: what is rejected, and what happens without a service."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from worlds import ECHO

from gem_core.adapter_kit.ports import free_port
from gem_core.errors import ConfigError
from gem_tinker import GemConfig, TinkerSettings, train
from gem_tinker.config import check_settings
from gem_tinker.local_server import LocalServer

Make = Callable[..., Any]


@pytest.mark.parametrize(
    ("settings", "fields", "message"),
    [
        pytest.param(
            {"loss": "gspo"},
            {},
            "loss='gspo' has one ratio per sequence.*use 'importance_sampling'",
            marks=pytest.mark.setting("GSPO", "rejected"),
        ),
        ({"loss": "dro"}, {}, "also trains tokens with an advantage of 0"),
        pytest.param(
            {"loss": "cross_entropy"},
            {},
            "does not take one advantage per token",
            marks=pytest.mark.setting("One advantage per sequence", "rejected"),
        ),
        ({"loss_config": {"beta": 1}}, {}, "loss_config has unknown fields: beta.*none"),
        ({"loss": "ppo", "loss_config": {"clip": 1}}, {}, "known fields: clip_low_threshold"),
        ({"adam": {"lr": 1}}, {}, "adam has unknown fields: lr; known fields: beta1"),
        ({"rank": 0}, {}, "rank must be a whole number of at least 1, got 0"),
        ({"updates": 1.5}, {}, "updates must be a whole number of at least 1, got 1.5"),
        ({"save_every": -1}, {}, "save_every must be a whole number of at least 0"),
        ({"batch_size": 13}, {}, "batch_size=13 is above the number of seeds, 12"),
        ({"learning_rate": -1.0}, {}, "learning_rate must be a finite number >= 0, got -1.0"),
        ({"learning_rate": float("nan")}, {}, "learning_rate must be a finite number >= 0"),
        ({"adam": {"beta1": "x"}}, {}, "beta1 must be a finite number >= 0, got 'x'"),
        (
            {"loss": "ppo", "loss_config": {"clip_low_threshold": 0.2, "clip_high_threshold": 0.2}},
            {},
            "1 must lie between them; write 0.8 and 1.2 for an epsilon of 0.2",
        ),
        (
            {"loss": "ppo", "loss_config": {"clip_high_threshold": None}},
            {},
            "clip_high_threshold must be a finite number >= 0, got None",
        ),
        ({"updates": "10"}, {}, "updates must be a whole number of at least 1, got '10'"),
        ({"eval_every": 5, "updates": 2}, {"eval_seeds": 2}, "eval_every=5 is above updates=2"),
        ({"eval_every": 1}, {}, "eval_every=1 does not fit 0 evaluation seeds"),
        ({}, {"eval_seeds": 2}, "eval_every=0 does not fit 2 evaluation seeds"),
        pytest.param(
            {},
            {"advantage": "grpo"},
            "compares episodes of one seed, but samples is 1",
            marks=pytest.mark.setting("Groups of one episode", "rejected"),
        ),
        ({}, {"max_turn_tokens": None}, "a turn has no token cap"),
    ],
)
def test_rejected_setting_names_the_remedy(
    settings: Any, fields: Any, message: str, make_config: Make, make_settings: Make
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_settings(make_settings(**settings), make_config(**fields))


def test_all_settings_are_rejected_at_once(make_config: Make) -> None:
    settings = TinkerSettings("tiny", loss="gspo", rank=0, adam={"lr": 1})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="^4 settings are rejected") as caught:
        check_settings(settings, make_config(seeds=4))
    assert str(caught.value).count("\n- ") == 4


@pytest.mark.setting("Critic", "rejected")
def test_estimator_with_a_critic_is_rejected() -> None:
    with pytest.raises(ConfigError, match="needs a critic, which tinker does not offer"):
        GemConfig(ECHO, advantage="gae")


def test_missing_key_is_reported_before_a_model_is_created(
    make_config: Make, make_settings: Make, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TINKER_API_KEY")
    models = len(server.service.trainings)
    with pytest.raises(ConfigError, match="api_key.* must be set.*set TINKER_API_KEY"):
        train(make_config(), make_settings())
    assert len(server.service.trainings) == models


def test_wrong_key_is_reported(make_config: Make, make_settings: Make, tmp_path: Path) -> None:
    with LocalServer("tiny", tmp_path, api_key="tml-other") as server:
        settings = make_settings(base_url=server.url)
        with pytest.raises(ConfigError, match="the API key is wrong.*set TINKER_API_KEY"):
            train(make_config(), settings)


def test_unreachable_service_is_reported_in_seconds(make_config: Make, make_settings: Make) -> None:
    began = time.monotonic()
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ConfigError, match=f"Tinker at {url} gave no access: .*TINKER_BASE_URL"):
        train(make_config(), make_settings(base_url=url))
    assert time.monotonic() - began < 30


def test_unknown_model_is_reported_with_the_known_ones(
    make_config: Make, make_settings: Make
) -> None:
    with pytest.raises(ConfigError, match="does not train the model 'tinny'; its models are tiny"):
        train(make_config(), make_settings(model="tinny"))
