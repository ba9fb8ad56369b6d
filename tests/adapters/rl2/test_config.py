"""Settings gem cannot honour are refused before a server starts, with the remedy; those it can are filled in."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import configuration

from gem_core.errors import ConfigError, UnknownNameError
from gem_rl2 import GemSpec, compose
from gem_rl2.config import longest_row, prepare_config
from gem_rl2.ppo import spec_of

ECHO = "test:Echo-v0"


@pytest.mark.parametrize(
    ("fields", "settings", "says"),
    [
        ({}, ["adv.estimator=gae"], "GemSpec(advantage=...)"),
        ({"gamma": 0.9}, ["adv.gamma=0.5"], "the discount is the spec's"),
        ({}, ["adv.norm_var=true"], "belong to RL2's own estimator"),
        ({}, ["actor.kl.coef=0.1", "actor.kl.type=reward"], "actor.kl.type=loss"),
        ({}, ["rollout.env_path=mine.py"], "leave it out"),
        ({}, ["rollout.max_turns=8"], "GemSpec(horizon=...)"),
        ({}, ["train_data.path=mine.jsonl"], "are written by GemPPOTrainer"),
        ({"seeds": 4}, [], "without a batch"),
        ({"advantage": "grpo"}, [], "responses_per_prompt=1; set it to 2"),
        ({"max_turn_tokens": None}, ["rollout.train_sampling_params.max_new_tokens=null"], "nothing caps a turn"),
        ({}, ["trainer.test_freq=5"], "GemSpec(eval_seeds=...)"),
    ],
)
def test_settings_that_break_a_promise_are_refused(
    tmp_path: Path, fields: dict[str, Any], settings: list[str], says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        prepare_config(configuration(*settings), GemSpec(ECHO, **{"max_turn_tokens": 6, **fields}), tmp_path)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        ({"advantage": "gae"}, ConfigError, "a critic, which rl2 does not offer"),
        ({"advantage": "rebm"}, UnknownNameError, "rebn"),
        ({"gamma": 1.5}, ConfigError, "between 0 and 1"),
        ({"horizon": "soon"}, ConfigError, "horizon"),
        ({"env_id": "test:Ecko-v0"}, UnknownNameError, "test:Echo-v0"),
    ],
)
def test_a_spec_that_cannot_be_honoured_is_refused(fields: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        GemSpec(**{"env_id": ECHO, **fields})


def test_a_rewritten_history_is_no_reason_to_refuse() -> None:
    assert GemSpec(ECHO, wrappers=["concat_chat(window=2)"]).all_wrappers


def test_the_configuration_says_what_is_used(tmp_path: Path) -> None:
    config = configuration()
    prepare_config(config, GemSpec(ECHO, seeds=16, eval_seeds=3, gamma=0.9, max_turn_tokens=6), tmp_path)
    assert (config.adv.estimator, config.adv.gamma) == ("gem", 0.9)
    train, test = (
        [json.loads(line)["extra_info"]["seed"] for line in Path(path).read_text().splitlines()]
        for path in (config.train_data.path, config.test_data.path)
    )
    assert train == list(range(16))
    assert test == [1_000_000, 1_000_001, 1_000_002]


def test_rl2_s_own_data_set_reads_what_is_written(tmp_path: Path) -> None:
    from RL2.datasets import RLDataset

    spec, config = GemSpec(ECHO, seeds=4), configuration("train_data.responses_per_prompt=2")
    config.train_data.path = spec.write_starts(tmp_path / "train.jsonl")
    data = RLDataset(config.train_data, None)
    assert [spec.seed_of(row) for row in data.collate_fn([data[i] for i in range(4)])] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_the_longest_row_is_what_all_devices_of_a_row_take() -> None:
    assert longest_row(configuration("actor.max_length_per_device=100")) == 100
    assert longest_row(configuration("actor.max_length_per_device=100", "actor.sp_size=2", "actor.tp_size=3")) == 600


def test_an_environment_file_of_the_release_says_what_it_needs() -> None:
    spec = GemSpec(ECHO)
    with pytest.raises(ConfigError, match="python -m gem_rl2.ppo"):
        asyncio.run(spec.reset({}))
    with pytest.raises(ConfigError, match="GemPPOTrainer"):
        asyncio.run(spec.step("", "", {}))


def test_the_command_line_names_the_environment() -> None:
    config = compose(["+gem.env_id=game:GuessTheNumber-v0-easy", "+gem.gamma=0.9", "+gem.seeds=8", "+gem.wrappers=[react]"])
    spec = spec_of(config)
    assert (spec.env_id, spec.gamma, spec.train_seeds, spec.all_wrappers) == (
        "game:GuessTheNumber-v0-easy",
        0.9,
        list(range(8)),
        (("react", {}),),
    )
    assert "gem" not in config
    with pytest.raises(ConfigError, match=r"\+gem.env_id=... names the environment"):
        spec_of(compose([]))
    with pytest.raises(ConfigError, match=r"\['gama'\] are unknown"):
        spec_of(compose(["+gem.env_id=game:GuessTheNumber-v0-easy", "+gem.gama=0.9"]))
