"""OpenRLHF accepts every flag of the commands in the documentation."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
from project import ROOT

from gem_openrlhf import GemConfig
from gem_openrlhf.__main__ import parse_flags
from gem_openrlhf.config import check_settings
from gem_openrlhf.trainer import run_program


class Parsed(Exception):
    """Stops OpenRLHF after it has parsed its flags."""


def parsed(flags: list[str]) -> Any:
    """Return the flags as OpenRLHF parses them."""

    def stop(args: Any) -> Any:
        raise Parsed(args)

    with pytest.raises(Parsed) as stopped:
        run_program(flags, stop)
    return stopped.value.args[0]


def checked(page: str, *more: str) -> tuple[GemConfig, Any]:
    """Return (config, OpenRLHF's settings) of a page's command, after gem's checks."""
    text = (ROOT / page).read_text(encoding="utf-8")
    text = text.replace("mine:Larger-v0", "game:GuessTheNumber-v0-easy")
    command = re.findall(r"^python -m gem_openrlhf (.*?)^```", text, re.MULTILINE | re.DOTALL)[0]
    config, flags, _ = parse_flags([*shlex.split(command.replace("\\\n", " ")), *more])
    assert config is not None
    own = ["--train.agent_func_path", "x", "--algo.advantage.estimator", "reinforce"]
    settings = parsed([*flags, *own])
    check_settings(settings, config, gpus=8 * settings.actor.num_nodes)
    return config, settings


@pytest.mark.parametrize(
    "more",
    [
        "",
        "--ds.lora.rank 32 --ds.lora.alpha 32 --ds.zero_stage 2 --actor.adam.lr 1e-5",
        "--actor.num_nodes 2 --vllm.num_engines 8",
        "--logger.wandb.key KEY --logger.wandb.project gem --logger.wandb.run_name guess-rebn",
    ],
)
def test_openrlhf_accepts_the_flags_of_the_scaling_page(more: str) -> None:
    assert more in (ROOT / "docs/scaling.md").read_text(encoding="utf-8")
    config, settings = checked("docs/scaling.md", *more.split())
    assert settings.rollout.batch_size <= len(config.train_seeds)


@pytest.mark.parametrize(
    "page", ["docs/train_your_environment.md", "adapters/gem_openrlhf/README.md"]
)
def test_openrlhf_accepts_the_command_of_the_page(page: str) -> None:
    config, settings = checked(page)
    assert settings.rollout.batch_size <= len(config.train_seeds)
