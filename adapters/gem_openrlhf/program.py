"""Program: runs OpenRLHF's `train_ppo_ray` with flags, in this process."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import openrlhf.utils

from gem_core.adapter_kit.patching import patched
from gem_core.errors import ConfigError
from gem_openrlhf.config import GemConfig
from gem_openrlhf.dataset import write_dataset

__all__ = ["add_dataset", "has_flag", "run_program"]


def run_program(flags: Sequence[str], get_strategy: Callable[[Any], Any]) -> None:
    """Run `train_ppo_ray` with these flags. It passes the parsed flags to `get_strategy`.

    It runs as `__main__`, because only there it parses flags.
    """
    with (
        patched(sys, "argv", ["train_ppo_ray", *flags]),
        patched(openrlhf.utils, "get_strategy", get_strategy, "args"),
    ):
        runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__")


def add_dataset(
    flags: list[str], name: str, config: GemConfig, path: Path, evaluation: bool = False
) -> None:
    """Write the dataset of the config, and add the flag that names it."""
    if has_flag(flags, name):
        raise ConfigError(
            f"{name} and a GemConfig are both set, but the GemConfig writes its own dataset; "
            "remove one of them"
        )
    flags += [name, str(write_dataset(config, path, evaluation=evaluation))]


def has_flag(flags: Sequence[str], name: str) -> bool:
    """Return whether the flags contain the flag `name`."""
    return any(flag == name or flag.startswith(f"{name}=") for flag in flags)
