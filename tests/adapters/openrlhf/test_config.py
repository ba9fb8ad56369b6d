"""What a user says, on its way into the data set and to the command line; what OpenRLHF's own flags may not say beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import ECHO

from gem_core.errors import ConfigError, UnknownNameError
from gem_core.training.horizon import HorizonSchedule
from gem_openrlhf import GemSpec
from gem_openrlhf.config import check_args, check_gpus, read_label
from gem_openrlhf.conformance import read_args
from gem_openrlhf.launcher import launch, parse_flags

FLAGS = ("--vllm.num_engines", "1", "--train.agent_func_path", "agent.py", "--actor.num_gpus_per_node", "1")
RIGHT = {"algo.advantage.estimator": "reinforce", "algo.kl.init_coef": "0"}


def test_a_label_holds_the_whole_spec(tmp_path: Path) -> None:
    spec = GemSpec(
        ECHO,
        seeds=[7, 8],
        wrappers=["boxed", ["turn_limit", {"max_turns": 3}]],
        advantage="grpo",
        estimator_kwargs={"scale": False},
        gamma=0.9,
        horizon="2,3@5",
        max_turn_tokens=16,
        record="episodes.jsonl",
    )
    read, seed = read_label(spec.label(7))
    assert seed == 7
    assert read.horizon == HorizonSchedule((2, 3), 5)
    assert read.record == str(Path("episodes.jsonl").absolute())
    for name in ("env_id", "wrappers", "advantage", "estimator_kwargs", "gamma", "max_turn_tokens"):
        assert getattr(read, name) == getattr(spec, name)
    assert read.task(7) == spec.task(7)
    assert read_label(spec.label(8))[0] is read, "a spec is read once, not once per start"


def test_the_data_set_has_a_row_per_start(tmp_path: Path) -> None:
    spec = GemSpec(ECHO, seeds=3, eval_seeds=2)
    rows = [json.loads(line) for line in spec.write(tmp_path / "new" / "train.jsonl").read_text().splitlines()]
    held_out = [json.loads(line) for line in spec.write(tmp_path / "eval.jsonl", evaluation=True).read_text().splitlines()]
    assert [read_label(row["label"])[1] for row in rows] == [0, 1, 2]
    assert [read_label(row["label"])[1] for row in held_out] == [1_000_000, 1_000_001]
    assert len({row["input"] for row in rows + held_out}) == 5, "OpenRLHF tells starts apart by their prompts"


def test_what_is_evaluated_on_is_played_as_the_spec_plays_it(tmp_path: Path) -> None:
    spec = GemSpec("qa:Sample-v0", seeds=3, eval_seeds=2, env_kwargs={"max_turns": 2}, eval_kwargs={"split": "test"})
    for evaluation, wanted in ((False, {"max_turns": 2}), (True, {"max_turns": 2, "split": "test"})):
        for line in spec.write(tmp_path / "d.jsonl", evaluation=evaluation).read_text().splitlines():
            label = json.loads(line)["label"]
            read, seed = read_label(label)
            assert read.task(seed) == spec.task(seed) and read.task(seed).env_kwargs == wanted
            assert label == spec.label(seed)


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        ({"advantage": "gae"}, ConfigError, "a critic, which openrlhf does not offer"),
        ({"advantage": "rebm"}, UnknownNameError, "rebn"),
        ({"wrappers": ["concat"]}, ConfigError, "several rows"),
        ({"wrappers": ["concat_chat(window=2)"]}, ConfigError, "several rows"),
        ({"gamma": 1.5}, ConfigError, "between 0 and 1"),
        ({"env_id": "test:Ecko-v0"}, UnknownNameError, "test:Echo-v0"),
    ],
)
def test_a_spec_that_cannot_be_honoured_is_refused(fields: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        GemSpec(**{"env_id": ECHO, **fields})


def test_what_no_file_can_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="plain data"):
        GemSpec(ECHO, template_kwargs={"table": object()}).label(0)
    with pytest.raises(ConfigError, match=r"end in \.jsonl"):
        GemSpec(ECHO).write(tmp_path / "starts.txt")
    with pytest.raises(ConfigError, match="eval_seeds"):
        GemSpec(ECHO).write(tmp_path / "eval.jsonl", evaluation=True)


def read(**flags: Any) -> Any:
    given = [*FLAGS]
    for name, value in {**RIGHT, **flags}.items():
        given += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return read_args(*given)


@pytest.mark.usefixtures("ray_here")
class TestOpenRLHFsFlags:
    def test_the_right_ones_pass(self) -> None:
        check_args(read(), GemSpec(ECHO))
        check_args(read(**{"algo.kl.init_coef": 0.01, "algo.kl.use_loss": True}), GemSpec(ECHO))
        check_args(read(**{"rollout.n_samples_per_prompt": 2}), GemSpec(ECHO, advantage="grpo"))

    @pytest.mark.parametrize(
        ("name", "value", "says"),
        [
            ("algo.advantage.estimator", "gae", "GemSpec\\(advantage"),
            ("algo.advantage.gamma", 0.9, "GemSpec\\(gamma"),
            ("algo.advantage.no_std_norm", True, "'scale': False"),
            ("algo.kl.init_coef", 0.01, "--algo.kl.use_loss"),
            ("reward.overlong_buffer_len", 10, "on_cut='mask'"),
            ("reward.stop_properly_penalty_coef", 0.5, "on_cut='mask'"),
            ("data.max_images_per_prompt", 1, "speak text"),
            ("vllm.num_engines", 0, "1 or more"),
        ],
    )
    def test_the_wrong_ones_are_refused_with_the_remedy(self, name: str, value: Any, says: str) -> None:
        with pytest.raises(ConfigError, match=says):
            check_args(read(**{name: value}), GemSpec(ECHO))

    def test_so_is_a_clip_range(self) -> None:
        args = read()
        args.reward.clip_range = (-1, 1)
        with pytest.raises(ConfigError, match="in a wrapper"):
            check_args(args, None)

    @pytest.mark.parametrize(
        ("spec", "says"),
        [
            ({"advantage": "grpo"}, "n_samples_per_prompt"),
            ({"max_turn_tokens": 4000}, "data.max_len"),
            ({"max_context": 4000}, "data.max_len"),
        ],
    )
    def test_a_spec_they_do_not_go_with_is_refused(self, spec: dict[str, Any], says: str) -> None:
        with pytest.raises(ConfigError, match=says):
            check_args(read(), GemSpec(ECHO, **spec))

    def test_training_without_a_gpu_is_refused_not_waited_for(self, tmp_path: Path) -> None:
        flags = [*FLAGS, "--algo.kl.init_coef", "0", "--actor.model_name_or_path", str(tmp_path)]
        with pytest.raises(ConfigError, match="Ray knows of 0 GPUs"):
            launch(flags, GemSpec(ECHO, seeds=2), tmp_path / "starts.jsonl")

    def test_a_data_set_that_is_refused_is_refused_before_any_model_is_loaded(self, tmp_path: Path) -> None:
        path = GemSpec(ECHO, seeds=2, advantage="grpo").write(tmp_path / "starts.jsonl")
        flags = [*FLAGS, "--algo.kl.init_coef", "0", "--data.prompt_dataset", str(path)]
        with pytest.raises(ConfigError, match="n_samples_per_prompt"):
            launch(flags)


def test_gem_flags_make_a_spec_and_the_rest_is_openrlhfs() -> None:
    given = ["--gem.env_id", ECHO, "--gem.seeds=[1, 2]", "--gem.gamma", "0.9", "--gem.wrappers", "boxed,turn_limit(max_turns=2)"]
    given += ["--gem.horizon", "2,3@5", "--gem.estimator_kwargs", '{"per_env": true}', "--gem.data", "here.jsonl"]
    rest, spec, data = parse_flags(["--train.async_enable", *given, "--rollout.batch_size", "8"])
    assert rest == ["--train.async_enable", "--rollout.batch_size", "8"]
    assert data == "here.jsonl"
    assert spec == GemSpec(
        ECHO,
        seeds=[1, 2],
        gamma=0.9,
        wrappers="boxed,turn_limit(max_turns=2)",
        horizon="2,3@5",
        estimator_kwargs={"per_env": True},
    )
    assert parse_flags(["--data.prompt_dataset", "mine.jsonl"])[1] is None


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--gem.env_id"], "needs a value"),
        (["--gem.advantages", "rebn"], "it has: env_id"),
        (["--gem.gamma", "0.9"], "give --gem.env_id"),
        (["--gem.env_id", ECHO, "--gem.gamma", "high"], "takes a number"),
    ],
)
def test_gem_flags_that_say_nothing_are_refused(flags: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_flags(flags)


def test_two_data_sets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="leave one of them out"):
        launch(["--data.prompt_dataset", "mine.jsonl"], GemSpec(ECHO), tmp_path / "starts.jsonl")


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ({}, 2),
        ({"train.colocate_all": True}, 1),
        ({"train.colocate_all": True, "train.async_enable": True}, 2),  # who plays while it trains shares with nobody
        ({"vllm.tensor_parallel_size": 4}, 5),
        ({"actor.num_nodes": 2}, 3),
    ],
)
@pytest.mark.usefixtures("ray_here")
def test_gpus_that_are_not_there_are_not_waited_for(flags: dict[str, Any], wanted: int) -> None:
    given = read(**flags)
    check_gpus(given, wanted)
    with pytest.raises(ConfigError, match=rf"Ray knows of {wanted - 1} GPUs.*--vllm\.num_engines"):
        check_gpus(given, wanted - 1)
