"""Run a recipe on a CPU: `python -m verl_on_cpu examples/verl_guess_the_number.py --updates 3`."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence

import verl_on_cpu

os.environ.update(verl_on_cpu.environment())

import gem_verl

_train = gem_verl.train


def train(config: gem_verl.GemConfig, settings: Sequence[str]) -> None:
    """Call `gem_verl.train` with the settings for a CPU."""
    _train(
        config,
        [*settings, *verl_on_cpu.SETTINGS, *os.environ.get("VERL_ON_CPU_SETTINGS", "").split()],
    )


gem_verl.train = train
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
