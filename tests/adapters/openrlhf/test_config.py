"""The config in the dataset and on the command line, and the rejected OpenRLHF settings."""

from __future__ import annotations

import json
import runpy
import sys
import time
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import openrlhf.utils
import pytest
import ray
from openrlhf.trainer import ppo_trainer
from openrlhf.trainer.ray import launcher
from project import ROOT
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from worlds import ECHO

import gem_openrlhf.__main__
import gem_openrlhf.trainer
from gem_core.errors import ConfigError, UnknownNameError
from gem_core.training.horizon import HorizonSchedule
from gem_openrlhf import GemConfig, train, write_dataset
from gem_openrlhf.__main__ import parse_flags
from gem_openrlhf.config import check_settings, config_of
from gem_openrlhf.conformance import read_args

FLAGS = (
    "--vllm.num_engines",
    "1",
    "--train.agent_func_path",
    "agent.py",
    "--actor.num_gpus_per_node",
    "1",
)
SUPPORTED = {"algo.advantage.estimator": "reinforce", "algo.kl.init_coef": "0"}
KL_LOSS = {"algo.kl.init_coef": 0.01, "algo.kl.use_loss": True}
GPUS = 8


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_config_round_trips_through_a_label() -> None:
    config = GemConfig(
        ECHO,
        seeds=[7, 8],
        wrappers=["boxed", ["turn_limit", {"max_turns": 3}]],
        advantage="grpo",
        estimator_kwargs={"scale": False},
        gamma=0.9,
        horizon="2,3@5",
        max_turn_tokens=16,
        record="episodes.jsonl",
        metrics="metrics.jsonl",
    )
    first, second = config.labels([7, 8])
    result = config_of(first)
    assert result.schedule == HorizonSchedule((2, 3), 5)
    assert result.record == str(Path("episodes.jsonl").absolute())
    assert result.metrics == str(Path("metrics.jsonl").absolute())
    for name in ("env_id", "wrappers", "advantage", "estimator_kwargs", "gamma", "max_turn_tokens"):
        assert getattr(result, name) == getattr(config, name)
    assert [result.task_of(label) for label in (first, second)] == [config.task(7), config.task(8)]
    assert config_of(second) is result, "the config is parsed once, not once per seed"


def test_dataset_has_one_row_per_seed(tmp_path: Path) -> None:
    config = GemConfig(ECHO, seeds=3, eval_seeds=2)
    training = rows(write_dataset(config, tmp_path / "new" / "train.jsonl"))
    evaluation = rows(write_dataset(config, tmp_path / "eval.jsonl", evaluation=True))
    assert [config.task_of(row["label"]).seed for row in training] == [0, 1, 2]
    assert [config.task_of(row["label"]).seed for row in evaluation] == [1_000_000, 1_000_001]
    prompts = {row["input"] for row in training + evaluation}
    assert len(prompts) == 5, "OpenRLHF distinguishes seeds by their prompts"


def test_evaluation_seeds_have_the_evaluation_env_kwargs(tmp_path: Path) -> None:
    config = GemConfig(
        "qa:Sample-v0",
        seeds=3,
        eval_seeds=2,
        env_kwargs={"max_turns": 2},
        eval_env_kwargs={"split": "test"},
    )
    for evaluation, expected in (
        (False, {"max_turns": 2}),
        (True, {"max_turns": 2, "split": "test"}),
    ):
        for row in rows(write_dataset(config, tmp_path / "data.jsonl", evaluation=evaluation)):
            task = config_of(row["label"]).task_of(row["label"])
            assert task == config.task(task.seed or 0) and task.env_kwargs == expected


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"advantage": "rebm"}, UnknownNameError, "rebn"),
        ({"history": "rewrite"}, ConfigError, "'append' or 'template'"),
        ({"hosts": 2}, ConfigError, "execution='ray'"),
        ({"gamma": 1.5}, ConfigError, "between 0 and 1"),
        ({"env_id": "test:Ecko-v0"}, UnknownNameError, "test:Echo-v0"),
    ],
)
def test_unsupported_config_is_rejected(
    fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        GemConfig(**{"env_id": ECHO, **fields})


def test_write_dataset_rejects_what_it_cannot_write(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="plain data"):
        GemConfig(ECHO, template_kwargs={"table": object()}).labels([0])
    with pytest.raises(ConfigError, match=r"ends in \.jsonl"):
        write_dataset(GemConfig(ECHO), tmp_path / "seeds.txt")
    with pytest.raises(ConfigError, match="eval_seeds"):
        write_dataset(GemConfig(ECHO), tmp_path / "eval.jsonl", evaluation=True)


def read(**flags: Any) -> Any:
    """Return OpenRLHF's settings with these flags."""
    texts = [*FLAGS]
    for name, value in {**SUPPORTED, **flags}.items():
        texts += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return read_args(*texts)


@pytest.mark.usefixtures("ray_here")
class TestSettings:
    def test_supported_settings_pass(self) -> None:
        check_settings(read(), GemConfig(ECHO), GPUS)
        check_settings(read(**KL_LOSS, **{"ref.num_gpus_per_node": 1}), GemConfig(ECHO), GPUS)
        check_settings(
            read(**{"rollout.n_samples_per_prompt": 2}), GemConfig(ECHO, advantage="grpo"), GPUS
        )
        critic = {"algo.advantage.estimator": "gae", "critic.num_gpus_per_node": 1}
        check_settings(read(**critic), GemConfig(ECHO, advantage="gae"), GPUS)

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("algo.advantage.estimator", "gae", "GemConfig\\(advantage"),
            ("train.batch_size", 0, "train.batch_size must be a whole number of at least 1"),
            ("algo.advantage.lambd", 0.9, "'lam': ..."),
            pytest.param(
                "algo.advantage.gamma",
                0.9,
                "GemConfig\\(gamma",
                marks=pytest.mark.setting("Estimator settings", "rejected"),
            ),
            ("algo.advantage.no_std_norm", True, "'scale': False"),
            pytest.param(
                "algo.kl.init_coef",
                0.01,
                "--algo.kl.use_loss",
                marks=pytest.mark.setting("KL in the reward", "rejected"),
            ),
            pytest.param(
                "actor.policy_loss_type",
                "gspo",
                "set it to ppo",
                marks=pytest.mark.setting("GSPO", "rejected"),
            ),
            pytest.param(
                "data.apply_chat_template",
                True,
                "always renders observations",
                marks=pytest.mark.setting("Trainer's own template settings", "rejected"),
            ),
            ("data.input_template", "User: {}", "GemConfig\\(template_kwargs"),
            pytest.param(
                "reward.overlong_buffer_len",
                10,
                "on_cut='mask'",
                marks=pytest.mark.setting("Trainer's own rewards", "rejected"),
            ),
            ("reward.stop_properly_penalty_coef", 0.5, "on_cut='mask'"),
            ("data.max_images_per_prompt", 1, "text only"),
            ("vllm.num_engines", 0, "1 or more"),
        ],
    )
    def test_unsupported_setting_is_rejected(self, name: str, value: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            check_settings(read(**{name: value}), GemConfig(ECHO), GPUS)

    @pytest.mark.parametrize("level", ["token", "seq"])
    def test_sequence_level_importance_correction_warns(self, level: str) -> None:
        settings = read(**{"algo.advantage.is_correction_level": level})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            check_settings(settings, GemConfig(ECHO), GPUS)
        messages = [str(warning.message) for warning in caught]
        assert len(messages) == (level == "seq")
        assert all("Set it to token" in message for message in messages)

    def test_evaluation_needs_seeds_and_an_interval(self) -> None:
        seeds = {"eval.dataset": "eval.jsonl"}
        check_settings(read(**seeds, **{"eval.steps": 10}), GemConfig(ECHO), GPUS)
        for settings in (seeds, {**seeds, "eval.steps": 0}):
            with pytest.raises(ConfigError, match="set it to the number of updates between"):
                check_settings(read(**settings), GemConfig(ECHO), GPUS)
        with pytest.raises(ConfigError, match=r"set GemConfig\(eval_seeds"):
            check_settings(read(**{"eval.steps": 10}), GemConfig(ECHO), GPUS)

    @pytest.mark.parametrize("name", ["--reward.remote_url", "--reward.model_name_or_path"])
    def test_reward_of_the_trainer_is_rejected(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=rf"{name}: rewards come from the environment"):
            train(GemConfig(ECHO), [f"{name}=x"], tmp_path / "data.jsonl")

    def test_clip_range_is_rejected(self) -> None:
        settings = read()
        settings.reward.clip_range = (-1, 1)
        with pytest.raises(ConfigError, match="in a wrapper"):
            check_settings(settings, None, GPUS)

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            pytest.param(
                {"advantage": "grpo"},
                "n_samples_per_prompt",
                marks=pytest.mark.setting("Groups of one episode", "rejected"),
            ),
            ({"max_turn_tokens": 4000}, "data.max_len"),
            ({"max_context": 4000}, "data.max_len"),
            ({"advantage": "gae"}, "set the flag to `gae`"),
        ],
    )
    def test_config_beyond_the_settings_is_rejected(
        self, fields: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            check_settings(read(), GemConfig(ECHO, **fields), GPUS)

    def test_turns_longer_than_openrlhf_allows_are_rejected(self) -> None:
        settings = read(**{"rollout.max_new_tokens": 16})
        check_settings(settings, GemConfig(ECHO, max_turn_tokens=16), GPUS)
        with pytest.raises(ConfigError, match="above --rollout.max_new_tokens=16, which limits on"):
            check_settings(settings, GemConfig(ECHO, max_turn_tokens=64), GPUS)

    @pytest.mark.parametrize(
        ("name", "value"),
        [("ds.zero_stage", 3), ("ds.tensor_parallel_size", 2), ("ds.load_in_4bit", True)],
    )
    def test_lora_needs_whole_weights(self, name: str, value: Any) -> None:
        check_settings(read(**{"ds.lora.rank": 4}), GemConfig(ECHO), GPUS)
        check_settings(read(**{name: value}), GemConfig(ECHO), GPUS)
        with pytest.raises(ConfigError, match="set --ds.zero_stage 2"):
            check_settings(read(**{"ds.lora.rank": 4, name: value}), GemConfig(ECHO), GPUS)

    def test_dynamic_batches_with_a_rewritten_history_are_rejected(self) -> None:
        settings = read(**{"train.dynamic_batch_enable": True})
        check_settings(settings, GemConfig(ECHO), GPUS)
        for fields in ({"history": "template"}, {"wrappers": ["concat"]}):
            with pytest.raises(ConfigError, match="drops sequences"):
                check_settings(settings, GemConfig(ECHO, **fields), GPUS)

    def test_dynamic_batches_without_episodes_are_rejected(self) -> None:
        settings = read(**{"train.dynamic_batch_enable": True, "train.batch_size": 0})
        with pytest.raises(ConfigError, match="train.batch_size must be a whole number"):
            check_settings(settings, GemConfig(ECHO), GPUS)

    def test_dynamic_batches_that_would_drop_episodes_are_rejected(self) -> None:
        settings = read(**{"train.dynamic_batch_enable": True, "train.batch_size": 100})
        with pytest.raises(ConfigError, match="drops the rest of 1024 episodes"):
            check_settings(settings, GemConfig(ECHO), GPUS)

    def test_all_rejected_settings_are_reported_at_once(self) -> None:
        settings = read(**{"algo.advantage.gamma": 0.9, "algo.kl.init_coef": 0.01})
        with pytest.raises(ConfigError, match="5 settings are rejected") as raised:
            check_settings(settings, GemConfig(ECHO, advantage="grpo", max_turn_tokens=4000), 0)
        for name in (
            "advantage.gamma",
            "kl.init_coef",
            "n_samples_per_prompt",
            "max_turn_tokens",
            "Ray has 0 GPUs",
        ):
            assert name in str(raised.value)

    @pytest.mark.parametrize(
        ("flags", "needed"),
        [
            ({}, 2),
            ({"train.colocate_all": True}, 1),
            # async training does not share GPUs
            ({"train.colocate_all": True, "train.async_enable": True}, 2),
            ({"vllm.tensor_parallel_size": 4}, 5),
            ({"actor.num_nodes": 2}, 3),
            # OpenRLHF loads the critic on 8 GPUs of its own by default
            ({"algo.advantage.estimator": "gae"}, 10),
            ({"algo.advantage.estimator": "gae", "train.colocate_all": True}, 1),
            # OpenRLHF loads a reference model for the KL divergence, by default on 8 GPUs
            (KL_LOSS, 10),
            ({**KL_LOSS, "ref.num_gpus_per_node": 2}, 4),
            ({**KL_LOSS, "train.colocate_actor_ref": True}, 2),
            ({**KL_LOSS, "train.colocate_all": True}, 1),
            ({**KL_LOSS, "train.colocate_all": True, "train.async_enable": True}, 2),
        ],
    )
    def test_too_few_gpus_are_rejected(self, flags: dict[str, Any], needed: int) -> None:
        settings = read(**flags)
        check_settings(settings, None, needed)
        with pytest.raises(ConfigError, match=rf"Ray has {needed - 1} GPUs.*--vllm\.num_engines"):
            check_settings(settings, None, needed - 1)


@pytest.mark.usefixtures("ray_here")
class TestTrain:
    def test_rejected_run_loads_no_model_and_undoes_its_patches(self, tmp_path: Path) -> None:
        originals = ppo_trainer.PPOTrainer, openrlhf.utils.get_strategy, sys.argv
        flags = [*FLAGS, "--algo.kl.init_coef", "0", "--actor.model_name_or_path", str(tmp_path)]
        with pytest.raises(ConfigError, match="Ray has 0 GPUs"):
            train(GemConfig(ECHO, seeds=2), flags, tmp_path / "data.jsonl")
        assert (ppo_trainer.PPOTrainer, openrlhf.utils.get_strategy, sys.argv) == originals
        assert ray.is_initialized(), "train does not shut down a Ray that it did not start"

    def test_evaluation_seeds_without_an_interval_are_rejected(self, tmp_path: Path) -> None:
        flags = [*FLAGS, "--algo.kl.init_coef", "0", "--train.colocate_all"]
        with pytest.raises(ConfigError, match=r"--eval\.steps -1 with seeds to evaluate on"):
            train(GemConfig(ECHO, seeds=2, eval_seeds=2), flags, tmp_path / "data.jsonl")

    @pytest.mark.parametrize("error", [KeyboardInterrupt, None])
    def test_run_ends_its_actors_in_a_ray_of_the_user(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException] | None
    ) -> None:
        """After Ctrl-C in a notebook, which keeps Ray and the handles of the actors."""

        @ray.remote(num_cpus=0)
        class Busy:
            def name(self) -> str:
                return "busy"

            def train(self) -> None:
                time.sleep(600)

        handles: list[Any] = []

        def run(*_: Any) -> None:
            places = launcher.placement_group([{"CPU": 1}])
            ray.get(places.ready())
            inside = PlacementGroupSchedulingStrategy(places)
            handles.append(Busy.options(num_cpus=1, scheduling_strategy=inside).remote())
            handles.append(Busy.remote())
            ray.get([actor.name.remote() for actor in handles])
            handles[1].train.remote()
            # more than Ray has: the run would wait for it
            handles.append(launcher.placement_group([{"CPU": 1000}]))
            if error is not None:
                raise error

        own = Busy.remote()
        monkeypatch.setattr(gem_openrlhf.trainer, "run_program", run)
        with nullcontext() if error is None else pytest.raises(error):
            train(GemConfig(ECHO, seeds=2), FLAGS, tmp_path / "data.jsonl")
        for actor in handles[:2]:
            with pytest.raises(ray.exceptions.RayActorError):
                ray.get(actor.name.remote(), timeout=60)
        states = [group["state"] for group in ray.util.placement_group_table().values()]
        assert states.count("REMOVED") >= 2 and "PENDING" not in states
        assert ray.get(own.name.remote()) == "busy", "an actor of the user keeps running"
        ray.kill(own)

    def test_config_of_an_existing_dataset_is_checked(self, tmp_path: Path) -> None:
        path = write_dataset(GemConfig(ECHO, seeds=2, advantage="grpo"), tmp_path / "data.jsonl")
        flags = [*FLAGS, "--algo.kl.init_coef", "0", "--data.prompt_dataset", str(path)]
        with pytest.raises(ConfigError, match="n_samples_per_prompt"):
            train(None, flags)

    def test_trainer_with_other_parameters_is_rejected(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        @ray.remote
        class OtherTrainer:
            def __init__(self, model: str) -> None: ...

        monkeypatch.setattr(ppo_trainer, "PPOTrainer", OtherTrainer)
        with pytest.raises(
            ConfigError, match=r"PPOTrainer takes \(model\) in the installed version"
        ):
            train(GemConfig(ECHO, seeds=2), FLAGS, tmp_path / "data.jsonl")

    @pytest.mark.parametrize("flag", ["--data.prompt_dataset", "--eval.dataset"])
    def test_second_dataset_is_rejected(self, tmp_path: Path, flag: str) -> None:
        with pytest.raises(ConfigError, match="remove one of them"):
            train(GemConfig(ECHO, eval_seeds=1), [f"{flag}=mine.jsonl"], tmp_path / "data.jsonl")


def test_gem_flags_set_the_config_and_other_flags_are_passed_on() -> None:
    fields = {
        "env_id": ECHO,
        "gamma": "0.9",
        "wrappers": "boxed,turn_limit(max_turns=2)",
        "horizon": "2,3@5",
        "on_cut": "mask",
        "estimator_kwargs": '{"per_env": true}',
        "data": "here.jsonl",
    }
    flags = [part for name, value in fields.items() for part in (f"--gem.{name}", value)]
    config, settings, data = parse_flags(
        ["--train.async_enable", *flags, "--gem.seeds=[1, 2]", "--rollout.batch_size", "8"]
    )
    assert settings == ["--train.async_enable", "--rollout.batch_size", "8"]
    assert data == "here.jsonl"
    assert config == GemConfig(
        ECHO,
        seeds=[1, 2],
        gamma=0.9,
        wrappers="boxed,turn_limit(max_turns=2)",
        horizon="2,3@5",
        on_cut="mask",
        estimator_kwargs={"per_env": True},
    )
    assert parse_flags(["--data.prompt_dataset", "mine.jsonl"])[0] is None


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--gem.env_id"], "needs a value"),
        (["--gem.advantages", "rebn"], "did you mean 'advantage'"),
        (["--gem.gamma", "0.9"], "no env_id"),
        (["--gem.env_id", ECHO, "--gem.gamma", "high"], "expected a number"),
    ],
)
def test_invalid_gem_flags_are_rejected(
    flags: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_flags(flags)
    monkeypatch.setattr(sys, "argv", ["gem_openrlhf", *flags])
    with pytest.raises(SystemExit, match=f"error: .*{message}"):  # one line, no traceback
        gem_openrlhf.__main__.main()


def test_recipe_sleeps_on_request_only(tmp_path: Path) -> None:
    recipe = runpy.run_path(str(ROOT / "examples/openrlhf_guess_the_number.py"))
    calls: list[list[str]] = []
    recipe["main"].__globals__["train"] = lambda config, flags, path: calls.append(flags)
    for more in ({"colocate": True}, {"colocate": True, "sleep": True}):
        recipe["main"](recipe["Args"](out=str(tmp_path), **more))
    shared = {"--train.colocate_all"}
    sleep = {"--vllm.enable_sleep", "--ds.enable_sleep"}
    assert [(shared | sleep) & set(flags) for flags in calls] == [shared, shared | sleep]
    for wrong in ({}, {"colocate": True, "asynchronous": True}):
        with pytest.raises(ConfigError, match="--sleep needs --colocate"):
            recipe["main"](recipe["Args"](out=str(tmp_path), sleep=True, **wrong))
