"""Options of `gem-rl conformance`: a device or number format that a check ignores is an error."""

from __future__ import annotations

import argparse
import importlib
from types import SimpleNamespace

import pytest
from gem_conformance import cli
from sound_harness import ADAPTER, Sound

from gem_core.errors import ConfigError


class OnGPU(Sound):
    only_cpu = False


def run(harness: type[Sound], *options: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(cli, "probe", lambda _: SimpleNamespace(supported=True, missing=()))
    monkeypatch.setattr(cli, "adapters", SimpleNamespace(get=lambda _: ADAPTER))
    monkeypatch.setattr(importlib, "import_module", lambda _: SimpleNamespace(harness=harness))
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    return cli.run(parser.parse_args(["sound", *options]))


@pytest.mark.parametrize("option", ["--bfloat16", "--device=cuda"])
def test_harness_for_the_cpu_takes_no_other_device(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="'sound' runs on the CPU in float32"):
        run(Sound, option, "--no-ranks", monkeypatch=monkeypatch)


@pytest.mark.parametrize("option", ["--bfloat16", "--device=cuda"])
def test_several_processes_take_no_other_device(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="add --no-ranks"):
        run(OnGPU, option, monkeypatch=monkeypatch)


def test_missing_module_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class WithoutKernels(Sound):
        def __init__(self) -> None:
            raise ModuleNotFoundError("No module named 'kernels'")

    with pytest.raises(ConfigError, match=r"cannot be checked here: No module named 'kernels'\. `"):
        run(WithoutKernels, monkeypatch=monkeypatch)
