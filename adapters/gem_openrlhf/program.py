"""Program: runs OpenRLHF's `train_ppo_ray` with flags, in this process, and ends its actors."""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openrlhf.utils
import ray
from openrlhf.trainer.ray import launcher, vllm_engine
from ray.actor import ActorClass

from gem_core.adapter_kit.patching import patched
from gem_core.errors import ConfigError
from gem_openrlhf.config import GemConfig
from gem_openrlhf.dataset import write_dataset

__all__ = ["add_dataset", "ending_actors", "has_flag", "run_program"]


def run_program(flags: Sequence[str], get_strategy: Callable[[Any], Any]) -> None:
    """Run `train_ppo_ray` with these flags. It passes the parsed flags to `get_strategy`.

    It runs as `__main__`, because only there it parses flags.
    """
    with (
        patched(sys, "argv", ["train_ppo_ray", *flags]),
        patched(openrlhf.utils, "get_strategy", get_strategy, "args"),
    ):
        runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__")


@contextmanager
def ending_actors() -> Iterator[None]:
    """End the Ray actors that this process starts inside, and free their GPUs.

    Otherwise, after Ctrl-C, OpenRLHF's actors would finish the training in a Ray that keeps
    running. Ray also keeps their placement groups until it stops.
    """
    actors: list[Any] = []
    groups: list[Any] = []
    # `ray.util.placement_group` is a function that hides its module
    ray_groups = importlib.import_module("ray.util.placement_group")
    create_actor, create_group = ActorClass._remote, ray_groups.placement_group

    def actor(self: Any, *args: Any, **kwargs: Any) -> Any:
        actors.append(create_actor(self, *args, **kwargs))
        return actors[-1]

    def group(*args: Any, **kwargs: Any) -> Any:
        groups.append(create_group(*args, **kwargs))
        return groups[-1]

    try:
        with (
            patched(ActorClass, "_remote", actor),
            patched(ray_groups, "placement_group", group),
            patched(launcher, "placement_group", group),
            patched(vllm_engine, "placement_group", group),
        ):
            yield
    finally:
        for each in reversed(actors):  # the trainer first
            ray.kill(each)
        for each in groups:
            ray.util.remove_placement_group(each)


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
